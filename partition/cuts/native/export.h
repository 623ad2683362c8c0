// Marks the functions that Python calls. Nothing in this folder depends on the headers of Python, numpy or torch.
#pragma once

#if defined(__GNUC__)
#define EXPORT extern "C" __attribute__((visibility("default")))
#else
#define EXPORT extern "C"
#endif
