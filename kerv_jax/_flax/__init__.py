"""What the layers of linen and of NNX share."""
