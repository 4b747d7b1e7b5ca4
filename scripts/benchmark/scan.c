/* scan FILE SQL...: step through all rows of each query, read every column, and store nothing.
 *
 * The time is a lower bound for any reader that uses SQLite. Prints the number of rows and SQLite's
 * version.
 */
#include <sqlite3.h>
#include <stdio.h>
#include <string.h>

enum { MAX_COLUMNS = 64 };

static sqlite3_int64 seen; /* updated by every value, so that the compiler keeps the reads */

static int is_text(sqlite3_stmt *query, int column)
{
    const char *type = sqlite3_column_decltype(query, column);
    return type != NULL && strcmp(type, "TEXT") == 0;
}

static void look(sqlite3_stmt *query, int columns, const int *text)
{
    for (int column = 0; column < columns; column++) {
        if (text[column])
            seen += sqlite3_column_text(query, column) != NULL;
        else
            seen += sqlite3_column_int64(query, column) & 1;
    }
}

/* Returns the number of rows, or -1 if SQLite reports an error. */
static long scan(sqlite3 *database, const char *sql)
{
    sqlite3_stmt *query;
    int text[MAX_COLUMNS], status;
    long rows = 0;

    if (sqlite3_prepare_v2(database, sql, -1, &query, NULL) != SQLITE_OK)
        return -1;
    int columns = sqlite3_column_count(query);
    if (columns > MAX_COLUMNS)
        columns = MAX_COLUMNS;
    for (int column = 0; column < columns; column++)
        text[column] = is_text(query, column);
    for (; (status = sqlite3_step(query)) == SQLITE_ROW; rows++)
        look(query, columns, text);
    sqlite3_finalize(query);
    return status == SQLITE_DONE ? rows : -1;
}

int main(int count, char **arguments)
{
    sqlite3 *database;
    long rows = 0;

    if (count < 3) {
        fprintf(stderr, "usage: scan FILE SQL...\n");
        return 2;
    }
    if (sqlite3_open_v2(arguments[1], &database, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK) {
        fprintf(stderr, "cannot open %s: %s\n", arguments[1], sqlite3_errmsg(database));
        return 1;
    }
    for (int argument = 2; argument < count; argument++) {
        long found = scan(database, arguments[argument]);
        if (found < 0) {
            fprintf(stderr, "cannot scan: %s\n", sqlite3_errmsg(database));
            return 1;
        }
        rows += found;
    }
    printf("%ld rows, SQLite %s, %d\n", rows, sqlite3_libversion(), (int)(seen & 1));
    sqlite3_close(database);
    return 0;
}
