/* A long launch in windows: warm up, measure, fast-forward (as SMARTS does; Wunderlich et al., ISCA 2003).
 *
 *     MEASURE -- the window is full --> fast-forward, refill the L2 --> WARM_UP -- settled --> MEASURE
 *     MEASURE -- little of the launch is left --> MEASURE_TO_END
 *
 * A window is played step by step and gives bytes per step of each tensor of the loop, and the pace of every CTA. Then all
 * CTAs move on at that pace, from work tile to work tile as the schedule gives them, for many steps at once; the L2 is
 * filled with what they passed last; and some steps are played until it is as it would be. What tensors outside the loop
 * move (Q, O, LSE) is counted for skipped work tiles too: a first load misses, a store is written back.
 */
#ifndef IOSIM_WINDOWS_H
#define IOSIM_WINDOWS_H
#include "launch.h"

#define MAX_PER_SM 64
/* A follower is in a convoy within 4 steps of the CTA ahead, at a pace equal to 1 part in 128. */
#define CONVOY_STEPS 4
#define CONVOY_SLACK 128
#define MIN_STEPS 16 /* of a CTA in a window, for a pace of its own */

enum Phase { WARM_UP, MEASURE, MEASURE_TO_END };

typedef struct { int32_t object; uint8_t side, mode; } Passed;

/* What the last work tile that was passed over moved of a template outside the loop: objects from `base` on, all of one
 * tensor; NIL: nothing that can be told again. */
typedef struct { int64_t base, bytes; int32_t tensor, pad; } Told;

/* Where a CTA is in what it walks: by these, the back of each row comes first. */
typedef struct { int64_t walked, at; int32_t cta, pad; } Place;

typedef struct {
    Play *play;
    Sampling *plan;               /* what was asked for, and the results */
    enum Phase phase;
    int64_t phase_loads;          /* loads of steps in this phase */
    int64_t past_loads;           /* and before it, those that were skipped included */
    int64_t launch_loads;         /* of the whole launch */
    L2State begun;                /* counters when the window began */
    int64_t *pace;                /* by CTA: picoseconds a step */
    Event *ends;                  /* a heap: when each live CTA ends its work tile, from the jump's begin */
    int waiting;                  /* CTAs in it */
    Place *places;
    int32_t *stamp;               /* by object x side: the jump before which it was last passed */
    int32_t jumps;
    int32_t longest;              /* steps of the longest work tile */
    Told told_pro[MAX_TEMPLATES], told_epi[MAX_TEMPLATES];
    Passed *passed;
    int64_t most_passed;
} Windows;

static void free_windows(Windows *w) {
    free(w->pace); free(w->ends); free(w->places); free(w->stamp); free(w->passed);
}

/* Room for a launch's windows; 0 where there is no memory. */
static int make_windows(Windows *w) {
    size_t slots = (size_t)w->play->slots, objects = (size_t)w->play->l2->objects;
    w->pace = malloc(sizeof(int64_t) * slots);
    w->ends = malloc(sizeof(Event) * slots);
    w->places = malloc(sizeof(Place) * slots);
    size_t sides = (size_t)w->play->config->partitions;
    /* An object is noted once a side in a look back; the stamp says in which, so that no look back
     * has to clear it. */
    w->stamp = calloc(sides * objects, sizeof(int32_t));
    w->passed = malloc(sizeof(Passed) * sides * objects);
    w->most_passed = (int64_t)(sides * objects);
    return w->pace && w->ends && w->places && w->stamp && w->passed;
}

/* ---- measuring ---- */

static void begin_window(Windows *w) {
    const Play *play = w->play;
    w->phase = MEASURE;
    w->phase_loads = 0;
    /* A window's bytes are the counters at its end less those at its begin. */
    w->begun = *play->l2;
    for (int i = 0; i < play->slots; i++) {
        Cta *a = &play->ctas[i];
        a->last_ps = -1, a->spent_ps = 0, a->steps = 0;
    }
}

static void end_window(Windows *w) {
    Sampling *plan = w->plan;
    const L2State *l2 = w->play->l2;
    int64_t n = plan->windows++;
    plan->played[n] = w->phase_loads;
    for (int t = 0; t < MAX_TENSORS; t++) {
        plan->read[n * MAX_TENSORS + t] = l2->hbm_read[t] - w->begun.hbm_read[t];
        plan->write[n * MAX_TENSORS + t] = l2->hbm_write[t] - w->begun.hbm_write[t];
        plan->filled[t] += l2->filled[t] - w->begun.filled[t];
        plan->drained[t] += l2->drained[t] - w->begun.drained[t];
    }
}

static inline void note_pace(Cta *a, int64_t t) {
    if (a->last_ps >= 0) a->spent_ps += t - a->last_ps, a->steps++;
    a->last_ps = t;
}

/* Picoseconds a step of every live CTA took in the window; returns the mean, 0 where none stepped. */
static int64_t take_paces(Windows *w) {
    const Play *play = w->play;
    int64_t sum = 0, steps = 0;
    for (int i = 0; i < play->live; i++) {
        const Cta *a = &play->ctas[play->running[i].cta];
        sum += a->spent_ps;
        steps += a->steps;
        /* What the steps would have taken had no load been waited for: the difference is said to the
         * reader, as jumps scatter CTAs that wait for one another. */
        w->plan->alone_ps += a->steps * step_time(&play->sms, a);
    }
    w->plan->took_ps += sum;
    if (steps == 0) return 0;
    int64_t mean = sum / steps > 0 ? sum / steps : 1;
    for (int i = 0; i < play->live; i++) {
        const Cta *a = &play->ctas[play->running[i].cta];
        /* A CTA that began late in the window has no pace of its own yet: the mean of all. */
        int64_t mine = a->steps >= MIN_STEPS ? a->spent_ps / a->steps : mean;
        w->pace[play->running[i].cta] = mine > 0 ? mine : 1;
    }
    return mean;
}

static int by_place(const void *x, const void *y) {
    const Place *a = x, *b = y;
    if (a->walked != b->walked) return a->walked < b->walked ? -1 : 1;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    return a->cta < b->cta ? -1 : a->cta > b->cta;
}

/* A CTA that is held up close behind another, and as fast as it, waits for what that one fetches: it goes on with it. */
static void join_convoys(Windows *w) {
    const Play *play = w->play;
    const LaunchPlan *l = play->plan;
    int n = 0;
    for (int i = 0; i < play->live; i++) {
        int id = play->running[i].cta;
        const Cta *a = &play->ctas[id];
        if (a->step < 0 || a->step >= l->count[a->tile] || l->n_loop == 0) continue;
        int index = loop_index(l, a->tile, a->step), down = l->down[a->tile];
        /* CTAs walk the same row where their loop's first access has the same base and direction; `at`
         * grows as they go on, so that the last of a row comes first in the sorted order. */
        w->places[n++] = (Place){2 * (int64_t)l->loop[0].base[a->tile] + down, down ? -index : index, id, 0};
    }
    qsort(w->places, (size_t)n, sizeof(Place), by_place);
    /* From the foremost back, so that a whole chain of followers takes the pace of its head. */
    for (int i = n - 2; i >= 0; i--) {
        const Place *me = &w->places[i], *ahead = &w->places[i + 1];
        int64_t mine = w->pace[me->cta], theirs = w->pace[ahead->cta], alone = step_time(&play->sms, &play->ctas[me->cta]);
        int64_t apart = mine > theirs ? mine - theirs : theirs - mine;
        int close = me->walked == ahead->walked && ahead->at - me->at <= CONVOY_STEPS;
        int held_up = mine * 1000 > alone * 1001;
        if (close && held_up && apart * CONVOY_SLACK < mine) w->pace[me->cta] = theirs;
    }
}

/* ---- fast-forward ---- */

/* Goes over the objects of a template that a skipped work tile moves, and notes what they are. */
static Told go_over(L2State *l2, const L2Config *c, const Template *list, int64_t first) {
    Told told = {first, 0, l2->object[first].tensor, 0};
    int load = is_load(list->mode);
    for (int r = 0; r < list->rows; r++)
        for (int m = 0; m < list->span; m++) {
            Object *o = l2->object + first + (int64_t)r * list->row_stride + m;
            if (c->side_sets) (load ? l2->filled : l2->drained)[o->tensor] += o->size;
            /* The first load of an object misses; later ones are taken for hits. Stores are written back. */
            if (load) l2->hbm_read[o->tensor] += o->touched ? 0 : o->size;
            else l2->hbm_write[o->tensor] += o->size;
            o->touched = 1;
            told.bytes += o->size;
            if (o->tensor != told.tensor) told.base = NIL;
        }
    return told;
}

/* What a skipped work tile moves outside its loop. A backward's tiles may go over all rows of their head, each the same: what
 * the tile before went over has been touched, and moves as much again without being looked at. */
static void pass_over(Windows *w, const Template *list, int n, Told *told, int tile) {
    L2State *l2 = w->play->l2;
    const L2Config *c = w->play->config;
    for (int k = 0; k < n; k++) {
        int64_t first = list[k].base[tile];
        if (first == NIL) continue;
        if (told[k].base != first) {
            told[k] = go_over(l2, c, list + k, first);
            w->plan->passed_over += (int64_t)list[k].rows * list[k].span;
            continue;
        }
        int load = is_load(list[k].mode), t = told[k].tensor;
        if (c->side_sets) (load ? l2->filled : l2->drained)[t] += told[k].bytes;
        if (!load) l2->hbm_write[t] += told[k].bytes;
    }
}

/* From the first loads of a work tile, which miss, to its first step. */
static int64_t opening_ps(const Play *play) {
    int64_t load = play->config->l2_latency_ps + play->config->dram_latency_ps;
    return load > play->plan->open_ps ? load : play->plan->open_ps;
}

/* Fills `ends`. */
static void queue_ends(Windows *w) {
    const Play *play = w->play;
    int64_t now = play->running[0].t;
    w->waiting = 0;
    for (int i = 0; i < play->live; i++) {
        int id = play->running[i].cta;
        const Cta *a = &play->ctas[id];
        int begun = a->step >= 0, steps_left = play->plan->count[a->tile] - (begun ? a->step : 0);
        /* Time to the end of the tile: to the present event, the opening where it has not begun, and
         * the steps that are left at the CTA's own pace. */
        int64_t rest = play->running[i].t - now + (begun ? 0 : opening_ps(play)) + steps_left * w->pace[id];
        w->ends[w->waiting] = (Event){rest, id, 0};
        sift_up(w->ends, w->waiting++);
    }
}

/* CTA `id` ends its work tile at `t`: its SM's younger CTAs move up in age and get faster from then on. */
static void pass_on_age(Windows *w, int id, int goes, int64_t t) {
    Play *play = w->play;
    Sms *sms = &play->sms;
    int stride = play->plan->sms, slots = play->slots, k = 0;
    Cta *ctas = play->ctas, *a = &ctas[id];
    /* Step times of the SM's CTAs before the change and after it: paces, and what is left of the
     * times to the ends of their tiles, scale by the quotient. */
    int64_t before[MAX_PER_SM], mine = step_time(sms, a);
    for (int i = a->sm; i < slots && k < MAX_PER_SM; i += stride) before[k++] = ctas[i].rank == NIL ? 0 : step_time(sms, &ctas[i]);
    leave_rank(play->plan, ctas, slots, id);
    if (goes) sms->live[a->sm]--;
    else {
        a->rank = sms->live[a->sm] - 1;
        w->pace[id] = w->pace[id] * step_time(sms, a) / mine;
    }
    k = 0;
    for (int i = a->sm; i < slots && k < MAX_PER_SM; i += stride, k++) {
        if (i == id || ctas[i].rank == NIL || before[k] == 0) continue;
        int64_t after = step_time(sms, &ctas[i]);
        if (after == before[k]) continue;
        w->pace[i] = w->pace[i] * after / before[k];
        for (int j = 0; j < w->waiting; j++)
            if (w->ends[j].cta == i) w->ends[j].t = t + (w->ends[j].t - t) * after / before[k];
    }
    /* Several ends have changed at once: build the heap anew. */
    for (int j = 1; j < w->waiting; j++) sift_up(w->ends, j);
}

/* The first CTA of `ends` ends its work tile and takes the next, where there is one; returns the loads of steps skipped. */
static int64_t skip_tile(Windows *w) {
    Play *play = w->play;
    const LaunchPlan *l = play->plan;
    int id = w->ends[0].cta;
    int64_t t = w->ends[0].t;
    Cta *a = &play->ctas[id];
    /* The loads of step s are asked for at step s - 1: a CTA at step s has asked for s + 1. */
    int count = l->count[a->tile], loaded = a->step < 0 ? 0 : a->step + 1 < count ? a->step + 1 : count;
    int take = tile_after(l, a, play->next);
    if (a->step < 0) pass_over(w, l->pro, l->n_pro, w->told_pro, a->tile);
    pass_over(w, l->epi, l->n_epi, w->told_epi, a->tile);
    if (take != NIL) a->previous = a->tile, a->tile = take, a->step = -1;
    /* A CTA that is relaunched becomes the youngest of its SM; a persistent one keeps its age. */
    if (take == NIL || l->relaunched) {
        w->waiting = drop_first(w->ends, w->waiting);
        pass_on_age(w, id, take == NIL, t);
    }
    if (take != NIL) {
        int64_t end = t + l->start_ps + opening_ps(play) + l->count[take] * w->pace[id];
        if (l->relaunched) {
            w->ends[w->waiting] = (Event){end, id, 0};
            sift_up(w->ends, w->waiting++);
        } else {
            w->ends[0].t = end;
            sift_down(w->ends, w->waiting);
        }
    }
    return count - loaded;
}

/* The CTAs of `ends` go on from where they are `span` after `now`; returns the loads of steps skipped in their work tiles. */
static int64_t resume(Windows *w, int64_t now, int64_t span) {
    Play *play = w->play;
    const LaunchPlan *l = play->plan;
    int64_t skipped = 0;
    play->live = 0;
    for (int i = 0; i < w->waiting; i++) {
        int id = w->ends[i].cta;
        Cta *a = &play->ctas[id];
        int count = l->count[a->tile];
        /* Counted back from the tile's end: so many whole steps are left, and the rest of a step is
         * when the next event comes. */
        int64_t pace = w->pace[id], rest = w->ends[i].t - span, steps_left = rest / pace, next_ps = rest - steps_left * pace;
        if (steps_left > count || (a->step < 0 && steps_left == count)) { /* not begun */
            int64_t wait = rest - count * pace - opening_ps(play);
            next_ps = wait > 0 ? wait : 0;
        } else {
            int at = count - (int)steps_left; /* skipped: the loads from the step where it was to this one */
            if (a->step < 0) {
                pass_over(w, l->pro, l->n_pro, w->told_pro, a->tile);
                skipped += at < count ? at + 1 : count;
            } else skipped += (at < count ? at : count - 1) - (a->step < count ? a->step : count - 1);
            a->step = at;
        }
        play->running[play->live] = (Event){now + next_ps, id, 0};
        sift_up(play->running, play->live++);
    }
    return skipped;
}

/* Every CTA moves on at its pace for `jump` steps on average; those that end their work tile take the next in the order of
 * time. */
static void fast_forward(Windows *w, int64_t jump) {
    int64_t now = w->play->running[0].t, mean = take_paces(w), span = mean * jump, skipped = 0;
    if (mean == 0) return;
    join_convoys(w);
    queue_ends(w);
    while (w->waiting > 0 && w->ends[0].t <= span) skipped += skip_tile(w);
    skipped += resume(w, now, span);
    w->plan->skipped_ps += span;
    w->past_loads += skipped;
    /* A gap's loads are added to both windows beside it and halved at the end (engine.py). */
    w->plan->carried[w->plan->windows - 1] += skipped;
    w->plan->carried[w->plan->windows] += skipped;
}

/* ---- the L2 after a jump ---- */

/* Empties the L2; dirty lines of tensors outside the loop are written back, the loop's are part of its rates. */
static void empty_l2(const Windows *w) {
    L2State *s = w->play->l2;
    const L2Config *c = w->play->config;
    int64_t n = (int64_t)c->partitions * c->sets * row_ways(c->ways);
    for (int64_t i = 0; i < n; i++) {
        int32_t tag = s->tags[i];
        if (tag >= 0 && (tag & 1)) {
            int t = s->object[s->object_of[tag >> 1]].tensor;
            if (!w->plan->looped[t]) {
                s->hbm_write[t] += c->sample_bytes;
                if (c->side_sets) s->drained[t] += c->sample_bytes;
            }
        }
        s->tags[i] = NIL;
    }
}

/* The work tile and the step in which a CTA was `back` steps ago, or 0 where that is further back than is known. */
static inline int passed_step(const LaunchPlan *l, const Cta *a, int back, int *tile, int *step) {
    *tile = a->tile;
    *step = a->step - back;
    if (*step < 0 && a->previous != NIL) {
        *tile = a->previous;
        /* Further back than the tile's begin: the steps of the tile before it, counted from its end. */
        *step += l->count[a->previous] + (a->step < 0);
    }
    return *step >= 0 && *step < l->count[*tile];
}

/* Notes the objects of a step that were not noted on that side before, from the `n`th on; returns their bytes. */
static int64_t note_passed(Windows *w, int tile, int step, int side, int64_t *n) {
    const LaunchPlan *l = w->play->plan;
    int index = loop_index(l, tile, step);
    int64_t bytes = 0;
    for (int j = 0; j < l->n_loop; j++) {
        const Template *t = &l->loop[j];
        if (!is_made(t, tile, index)) continue;
        int64_t first = first_object(t, tile, index);
        for (int r = 0; r < t->rows; r++)
            for (int m = 0; m < t->span && *n < w->most_passed; m++) {
                int64_t o = first + (int64_t)r * t->row_stride + m;
                int32_t *stamp = w->stamp + w->play->config->partitions * o + side;
                if (*stamp == w->jumps) continue;
                *stamp = w->jumps;
                w->passed[(*n)++] = (Passed){(int32_t)o, (uint8_t)side, (uint8_t)t->mode};
                bytes += w->play->l2->object[o].size;
            }
    }
    return bytes;
}

/* Goes back over what the CTAs passed, the latest first, until it would fill the L2; returns the number of objects. */
static int64_t look_back(Windows *w) {
    const Play *play = w->play;
    const L2Config *c = play->config;
    /* Enough to fill the larger of an L2 and its part of the cache at the memory's side. */
    int64_t lines = (int64_t)c->sets * c->ways, behind = (int64_t)c->side_sets * c->side_ways / c->partitions;
    int64_t holds = (lines > behind ? lines : behind) * c->sample_bytes, bytes[MAX_PARTITIONS] = {0}, n = 0;
    int full = 0;
    w->jumps++;
    /* One step back of all CTAs, then two steps back, ...: nearly the order of time, as CTAs step
     * at nearly one pace. What is touched latest stands first, as in a stack of last use. */
    for (int back = 0; back < w->longest && full < c->partitions; back++) {
        for (int i = 0; i < play->live; i++) {
            const Cta *a = &play->ctas[play->running[i].cta];
            int tile, step, side = play->plan->side[a->sm];
            if (passed_step(play->plan, a, back, &tile, &step)) bytes[side] += note_passed(w, tile, step, side, &n);
        }
        full = 0;
        for (int side = 0; side < c->partitions; side++) full += bytes[side] >= holds;
    }
    return n;
}

/* Fills the L2 with what the CTAs passed last, the oldest first. */
static void refill_l2(Windows *w) {
    L2State *s = w->play->l2;
    const L2Config *c = w->play->config;
    int64_t n = look_back(w);
    empty_l2(w);
    L2State counters = *s;
    while (n-- > 0) {
        Passed x = w->passed[n];
        Object *o = s->object + x.object;
        o->touched = 1;
        for (int32_t y = o->first; y < o->first + o->samples; y++) {
            int home = has_homes(c) ? (int)(s->place[y] & 1) : x.side;
            /* As a load or a store would leave the line, without its bytes and times. */
            if (c->side_sets) look_at_side(s, c, y);
            if (is_load(x.mode)) {
                if (home != x.side) touch(s, c, home, y, 0);
                touch(s, c, x.side, y, 0);
            } else write_line(s, c, x.mode, home, x.side, y);
        }
    }
    *s = counters; /* tags lie outside: only counters and queues go back */
}

/* ---- from phase to phase ---- */

static void start_windows(Windows *w) {
    const LaunchPlan *l = w->play->plan;
    for (int k = 0; k < MAX_TEMPLATES; k++) w->told_pro[k].base = w->told_epi[k].base = NIL;
    for (int i = 0; i < l->tiles; i++) {
        w->launch_loads += l->count[i];
        if (l->count[i] > w->longest) w->longest = l->count[i];
    }
    begin_window(w);
}

/* Called after each step: begins a window, or ends one and jumps, when it is time. */
static inline void advance_windows(Windows *w) {
    Sampling *plan = w->plan;
    int64_t slots = w->play->slots;
    /* Settled: what was played since the jump stands beside the coming window (twice, as a gap
     * counts half for each window). */
    if (w->phase == WARM_UP && w->phase_loads >= plan->settle * slots) {
        plan->carried[plan->windows] += 2 * w->phase_loads;
        w->past_loads += w->phase_loads;
        begin_window(w);
    } else if (w->phase == MEASURE && w->phase_loads >= plan->window * slots) {
        /* Never jump over more than half of what is left: the end of a launch, where SMs run empty, is
         * unlike its middle and is played. */
        int64_t half = (w->launch_loads - w->past_loads - w->phase_loads) / (2 * slots);
        int64_t jump = plan->jump < half ? plan->jump : half;
        if (plan->windows + 1 >= plan->max_windows || jump < 2 * (plan->settle + plan->window)) {
            w->phase = MEASURE_TO_END;
            return;
        }
        end_window(w);
        w->past_loads += w->phase_loads;
        fast_forward(w, jump);
        refill_l2(w);
        w->phase = WARM_UP;
        w->phase_loads = 0;
    }
}

/* Closes the last window, or hands what it would have stood for to the one before. */
static void finish_windows(Windows *w) {
    Sampling *plan = w->plan;
    int measuring = w->phase != WARM_UP;
    if (measuring && w->phase_loads > 0) end_window(w);
    else if (plan->windows > 0)
        plan->carried[plan->windows - 1] += plan->carried[plan->windows] + (measuring ? 0 : 2 * w->phase_loads);
}

#endif
