"""The passes: a file named by a verb, one public function of that name, tree in, tree out."""
