"""Pictures for people to look at: labelled boxes, curves, batches."""
