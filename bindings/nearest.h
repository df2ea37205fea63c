/* nearest.h - finds what a misspelt name was meant to be. */
#ifndef zt_nearest_h
#define zt_nearest_h

/* The entry of 'names' (NULL ends it) with the fewest edits from 'word', or NULL where all are too far: half of the longer one or
** more would change.
** Hyphens and underscores are the same. Borrowed. */
const char *zt_nearest(const char *word, const char *const names[]);

#endif
