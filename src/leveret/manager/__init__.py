"""The one writer: stimuli in, events out."""
