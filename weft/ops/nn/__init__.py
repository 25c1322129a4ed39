"""What models are made of: sliding windows, layers and losses.

| file | what lives in it |
|---|---|
| `activation` | activation functions and gated pairs of them |
| `convolution` | convolution and its transpose |
| `correlation` | the primitive under them, and its derivatives |
| `pooling` | sliding windows reduced to one number each |
| `unpooling` | the largest of each window put back where they were |
| `bags` | sums, means and maxima of rows of a table |
| `normalization` | normalisation layers, dropout, attention |
| `loss` | how far predictions are from targets |
| `ctc` | the same where labels have no places in time |
| `patches` | images as columns of patches, and back |
| `resample` | interpolation, pixel shuffles, sampling on a grid |
"""
