"""Models in a folder: which there are, what of them is loaded, and for which sizes of inputs they are compiled."""
