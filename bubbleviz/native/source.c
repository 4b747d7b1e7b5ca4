/* Source: checksum of the source files from which the library was compiled. */
#ifndef EXPORTED
#define EXPORTED __attribute__((visibility("default")))
#endif

#ifndef BUBBLEVIZ_SOURCE
#define BUBBLEVIZ_SOURCE 0
#endif

/* Return the checksum of all C files, or 0 if the build did not define it. */
EXPORTED unsigned bubbleviz_source(void)
{
    return BUBBLEVIZ_SOURCE;
}
