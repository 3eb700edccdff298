"""Pure scheduling: what is free and who gets it."""
