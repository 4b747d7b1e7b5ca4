/* Has valgrind's massif write how many instructions this process has run to a file. */
#include <valgrind/valgrind.h>

/* Returns 0, also where no valgrind listens: then there is no file. */
int count_into(const char *command) { return (int)VALGRIND_MONITOR_COMMAND(command); }
