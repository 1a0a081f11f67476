"""Language models. This module imports nothing so that the plugin registry can scan the package lazily."""
