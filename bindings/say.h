/* say.h - what the program says on the standard error output: lines that start with "ztrain: ", each one write, so that
** those of several ranks do not mix. */
#ifndef zt_say_h
#define zt_say_h

/* From now on lines start with "ztrain: rank 3/4: ". */
void zt_say_as(int rank, int size);

/* 'more', NULL ok, follows as it is: a traceback. The text becomes one line. */
void zt_say(const char *text, const char *more);

#endif
