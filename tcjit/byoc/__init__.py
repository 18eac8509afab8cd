"""Bring your own codegen: models are cut into regions, and each region goes to the backend that serves it best."""
