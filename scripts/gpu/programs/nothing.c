/* A library that does nothing: what a preloaded library costs by being there. */
int nothing;
