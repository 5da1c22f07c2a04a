"""Prediction on pictures of one's own: from files or arrays to boxes in their coordinates.

Nothing here is imported before it is needed: ``lucid predict --help`` answers without torch.
"""
