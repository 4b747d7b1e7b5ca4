/* Source: which source the library is compiled from, as the build says. */
#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

#ifndef BUBBLEVIZ_SOURCE
#define BUBBLEVIZ_SOURCE 0
#endif

/* Checksum of all C files; 0: the build did not say. */
EXPORTED unsigned bubbleviz_source(void)
{
    return BUBBLEVIZ_SOURCE;
}
