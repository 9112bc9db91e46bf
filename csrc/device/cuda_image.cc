// Stands in for the kernels where the build had no nvcc; else a generated file holds them.
#include "device/cuda_image.h"

#ifndef KVTIER_HAVE_CUDA_IMAGE
std::span<const unsigned char> kvtier::cuda_image() { return {}; }
#endif
