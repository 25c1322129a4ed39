"""The engine room: values, recorded graphs, tensors, sharding and the tape."""
