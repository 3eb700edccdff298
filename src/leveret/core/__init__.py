"""Pure job model: no clock, no I/O, no randomness (RFCs 18-26)."""
