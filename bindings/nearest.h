/* nearest.h - finds what a misspelt name was meant to be. */
#ifndef zt_nearest_h
#define zt_nearest_h

/* Edits (insert, delete, replace, swap of neighbours) that make b of a, hyphens and underscores being the same: the
** optimal string alignment distance. INT_MAX where one has more than 64 characters. */
int zt_edit_distance(const char *a, const char *b);

/* The entry of 'names' (NULL ends it) with the fewest edits from 'word', or NULL where all are too far: half of the
** longer one or more would change. Borrowed. */
const char *zt_nearest(const char *word, const char *const names[]);

#endif
