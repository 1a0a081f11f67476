"""The only place in fray that loads backends or looks at installed distributions."""
