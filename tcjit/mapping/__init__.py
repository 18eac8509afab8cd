"""How a program will run: from a checked program to a mapped schedule tree, proved legal."""
