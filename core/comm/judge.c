#include "core/comm/judge.h"

#include <stdio.h>
#include <string.h>

static const zt_entry *entry_of(const zt_report *r, uint64_t seq) { return &r->entries[seq % ZT_LOG_ENTRIES]; }

/* "all_gather 'parameters of page 3' (recipe.lua:12)" */
static void describe(const zt_entry *e, bool with_bytes, char *text, size_t room) {
  static const char *const names[] = {
#define ZT_COLLECTIVE_NAME(id, name) name,
      ZT_COLLECTIVES(ZT_COLLECTIVE_NAME)
#undef ZT_COLLECTIVE_NAME
  };
  char bytes[40] = "";
  bool label = e->label[0] != '\0', where = e->where[0] != '\0';
  if (with_bytes) snprintf(bytes, sizeof bytes, " of %llu bytes", (unsigned long long)e->nbytes);
  snprintf(text, room, "%s%s%s%s%s%s%s%s", e->kind < ZT_N_COLLECTIVES ? names[e->kind] : "?", bytes, label ? " '" : "",
           e->label, label ? "'" : "", where ? " (" : "", e->where, where ? ")" : "");
}

/* The first collective, among those that both still know, in which two ranks differ; 0: none. */
static uint64_t first_difference(const zt_report *a, const zt_report *b, bool *oldest) {
  uint64_t last = a->seq < b->seq ? a->seq : b->seq, latest = a->seq < b->seq ? b->seq : a->seq;
  uint64_t first = latest > ZT_LOG_ENTRIES ? latest - ZT_LOG_ENTRIES + 1 : 1;
  for (uint64_t s = first; s <= last; s++) {
    if (entry_of(a, s)->hash == entry_of(b, s)->hash) continue;
    *oldest = s == first && s > 1;
    return s;
  }
  return 0;
}

static bool differ(const zt_peer *peers, int size, zt_verdict *v) {
  uint64_t seq = 0;
  int one = 0, other = 0;
  bool oldest = false;
  while (one < size && !peers[one].known) one++;
  for (int r = one + 1; r < size; r++) {
    bool before;
    uint64_t s = peers[r].known ? first_difference(&peers[one].report, &peers[r].report, &before) : 0;
    if (s && (!seq || s < seq)) seq = s, other = r, oldest = before;
  }
  if (!seq) return false;
  char a[320], b[320];
  const zt_entry *ea = entry_of(&peers[one].report, seq), *eb = entry_of(&peers[other].report, seq);
  bool with_bytes = ea->kind == eb->kind && ea->nbytes != eb->nbytes;
  describe(ea, with_bytes, a, sizeof a), describe(eb, with_bytes, b, sizeof b);
  v->kind = ZT_FAILURE;
  snprintf(v->text, sizeof v->text, "ranks differ at%s collective %llu: rank %d is in %s, rank %d in %s",
           oldest ? " or before" : "", (unsigned long long)seq, one, a, other, b);
  return true;
}

/* The lowest rank that has waited that long in a collective after 'seq'; -1: none. */
static int waiting_after(const zt_peer *peers, int size, uint64_t seq, double seconds) {
  for (int r = 0; r < size; r++)
    if (peers[r].known && peers[r].report.seq > seq && peers[r].report.waited >= seconds) return r;
  return -1;
}

static bool ended(const zt_peer *peers, int size, double seconds, zt_verdict *v) {
  for (int q = 0; q < size; q++) {
    int r = peers[q].ended ? waiting_after(peers, size, peers[q].report.seq, seconds) : -1;
    if (r < 0) continue;
    char text[320];
    describe(entry_of(&peers[r].report, peers[r].report.seq), false, text, sizeof text);
    v->kind = ZT_FAILURE;
    snprintf(v->text, sizeof v->text, "rank %d/%d ended, while rank %d waits in %s", q, size, r, text);
    return true;
  }
  return false;
}

/* The rank that is farthest behind: one that does not answer, or the one with the fewest collectives. */
static int last_one(const zt_peer *peers, int size) {
  int last = 0;
  for (int r = 0; r < size; r++) {
    if (!peers[r].known) return r;
    if (peers[r].report.seq < peers[last].report.seq) last = r;
  }
  return last;
}

static void describe_last(const zt_peer *p, char *text, size_t room) {
  char entry[320];
  unsigned long long seq = p->report.seq;
  describe(entry_of(&p->report, p->report.seq), false, entry, sizeof entry);
  if (!p->known)
    snprintf(text, room, "it does not answer");
  else if (seq == 0)
    snprintf(text, room, "it has been in no collective yet");
  else
    snprintf(text, room, "it was last in collective %llu, %s", seq, entry);
}

static void late(const zt_peer *peers, int size, double timeout, zt_verdict *v) {
  double notice = timeout / 2 < ZT_NOTICE_SECONDS ? timeout / 2 : ZT_NOTICE_SECONDS;
  int q = last_one(peers, size), r = waiting_after(peers, size, peers[q].known ? peers[q].report.seq : 0, notice);
  char whom[64], what[320], behind[400];
  snprintf(whom, sizeof whom, "rank %d", q);
  describe_last(&peers[q], behind, sizeof behind);
  if (r < 0) { /* none is behind */
    r = waiting_after(peers, size, 0, notice);
    if (r < 0) return;
    snprintf(whom, sizeof whom, "others");
    snprintf(behind, sizeof behind, "no rank is behind");
  }
  const zt_report *report = &peers[r].report;
  describe(entry_of(report, report->seq), false, what, sizeof what);
  v->to = r, v->seq = report->seq;
  v->kind = report->waited >= timeout ? ZT_FAILURE : ZT_NOTICE;
  if (v->kind == ZT_FAILURE)
    snprintf(v->text, sizeof v->text, "rank %d has waited %.0f s for %s in %s; %s", r, report->waited, whom, what,
             behind);
  else
    snprintf(v->text, sizeof v->text, "waiting %.0f s for %s in %s; %s", report->waited, whom, what, behind);
}

zt_verdict zt_judge(const zt_peer *peers, int size, double timeout) {
  zt_verdict v = {.kind = ZT_NOTHING};
  double look = timeout < ZT_LOOK_SECONDS ? timeout : ZT_LOOK_SECONDS;
  if (!differ(peers, size, &v) && !ended(peers, size, look, &v)) late(peers, size, timeout, &v);
  return v;
}
