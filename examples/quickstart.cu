// quickstart.cpp on a GPU: nvcc makes its engine one with CudaPolicy.
#include "quickstart.cpp"
