"""The only places that import heavy integrations, inside functions, so that plain use does not pay for them."""
