/* launch.h - starts ranks on this machine: processes of this program, each told by its environment who it is. */
#ifndef zt_launch_h
#define zt_launch_h

#include <stdbool.h>

#include "core/comm/world.h"

/* Starts n ranks with the program's arguments and waits for their end. Each is in a process group of its own, which ends with
** it, and it ends with this process. SIGINT and SIGTERM are passed on to every rank. The exit status: 0 where all ended with 0;
** else that of the rank that failed first, 128 + the signal of one that was killed. The others then get some seconds to end by
** themselves. Says on the error output what no rank can say. */
int zt_launch(int n, char *argv[]);

/* In a rank that was started so: what the environment does not say in the words of other launchers. False in other
** processes. Forgets it: the processes that this one starts are none of its ranks. */
bool zt_launched(zt_world_options *options);

/* OpenMP threads for each of n ranks of this machine: its share of the cores that this process may use. */
int zt_threads_each(int n);

#endif
