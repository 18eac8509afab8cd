"""Loop nests of tiles: every reduction in one mapped form, from exact rewrites of its iteration domain to register tiles."""
