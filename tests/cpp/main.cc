// Holds the entry point of the C++ test program; test cases register themselves from their files.
// Single-threaded: doctest runs one test case at a time.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
