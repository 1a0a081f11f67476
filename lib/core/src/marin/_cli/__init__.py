"""Parts of the command line: rendering, errors, loading of scripts."""
