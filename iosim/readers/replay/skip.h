/* Long launches: short windows are played, and what lies between them is skipped.
 *
 * A window is played step by step and gives bytes per step of each tensor of the loop, and the pace of every CTA. Then all
 * CTAs move on at that pace, from tile to tile as the schedule gives them, for many steps at once; the L2 is filled with
 * what they passed last; some steps are played to settle; and the next window begins. What tensors outside the loop move
 * (Q, O, LSE) is counted for skipped tiles too: a first load misses, a store is written back.
 */
#ifndef IOSIM_SKIP_H
#define IOSIM_SKIP_H
#include "launch.h"

#define MAX_PER_SM 64
#define CONVOY_STEPS 4
#define CONVOY_SLACK 128
#define MIN_STEPS 16 /* of a CTA in a window, for a pace of its own */

typedef struct { int32_t object; uint8_t side, mode; } Passed;

typedef struct {
    Sampling *to;
    int settling, on;             /* playing steps that do not count; whether more is skipped */
    int64_t loads, all;           /* loads of steps in this phase; since the launch began, skipped ones included */
    int64_t begun_read[MAX_TENSORS], begun_write[MAX_TENSORS];
    int64_t total;                /* loads of steps of the launch */
    int32_t *stamp;               /* by object x side: the round in which it was passed */
    int32_t round;
    int32_t backs;                /* steps back that are looked at */
    Passed *passed;
    int64_t room;
    void *places;
} Skipper;

static void begin_window(Skipper *k, const L2State *s, Cta *ctas, int slots) {
    k->settling = 0;
    k->loads = 0;
    memcpy(k->begun_read, s->hbm_read, sizeof k->begun_read);
    memcpy(k->begun_write, s->hbm_write, sizeof k->begun_write);
    for (int i = 0; i < slots; i++) ctas[i].last_ps = -1, ctas[i].spent_ps = 0, ctas[i].steps = 0;
}

/* Closes a window; `carried` loads around it are its to stand for. */
static void end_window(Skipper *k, const L2State *s) {
    Sampling *to = k->to;
    int w = to->windows++;
    to->played[w] = k->loads;
    for (int t = 0; t < MAX_TENSORS; t++) {
        to->read[(int64_t)w * MAX_TENSORS + t] = s->hbm_read[t] - k->begun_read[t];
        to->write[(int64_t)w * MAX_TENSORS + t] = s->hbm_write[t] - k->begun_write[t];
    }
}

static inline void note_pace(Cta *a, int64_t t) {
    if (a->last_ps >= 0) a->spent_ps += t - a->last_ps, a->steps++;
    a->last_ps = t;
}

/* What a skipped work tile moves outside its loop. */
static void pass_over(L2State *s, const Template *list, int n, int tile) {
    for (int k = 0; k < n; k++) {
        int64_t first = list[k].base[tile];
        if (first == NIL) continue;
        for (int r = 0; r < list[k].rows; r++)
            for (int m = 0; m < list[k].span; m++) {
                Object *o = s->object + first + (int64_t)r * list[k].row_stride + m;
                if (list[k].mode == LOAD) s->hbm_read[o->tensor] += o->touched ? 0 : o->size;
                else s->hbm_write[o->tensor] += o->size;
                o->touched = 1;
            }
    }
}

/* Empties the L2; dirty lines of tensors outside the loop are written back, the loop's are part of its rates. */
static void empty_l2(L2State *s, const L2Config *c, const Sampling *to) {
    int64_t row = row_ways(c->ways), n = (int64_t)c->partitions * c->sets;
    for (int64_t i = 0; i < n * row; i++) {
        int32_t tag = s->tags[i];
        if (tag >= 0 && (tag & 1)) {
            int t = s->object[s->object_of[tag >> 1]].tensor;
            if (!to->looped[t]) s->hbm_write[t] += c->sample_bytes;
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
        *step += l->count[a->previous] + (a->step < 0);
    }
    return *step >= 0 && *step < l->count[*tile];
}

/* Notes the objects of one step of a CTA that were not noted on its side before; returns their bytes. */
static int64_t note_passed(Skipper *k, const L2State *s, const LaunchPlan *l, int tile, int step, int side, int64_t *n) {
    int idx = loop_index(l, tile, step);
    int64_t bytes = 0;
    for (int j = 0; j < l->n_loop; j++) {
        const Template *t = &l->loop[j];
        if (!is_made(t, tile, idx)) continue;
        int64_t first = t->base[tile] + (int64_t)t->coef * idx;
        for (int r = 0; r < t->rows; r++)
            for (int m = 0; m < t->span && *n < k->room; m++) {
                int64_t o = first + (int64_t)r * t->row_stride + m;
                if (k->stamp[2 * o + side] == k->round) continue;
                k->stamp[2 * o + side] = k->round;
                k->passed[(*n)++] = (Passed){(int32_t)o, (uint8_t)side, (uint8_t)t->mode};
                bytes += s->object[o].size;
            }
    }
    return bytes;
}

/* Goes back over what the CTAs passed, the latest first, until it would fill the L2; returns the number of objects. */
static int64_t look_back(Skipper *k, const L2State *s, const L2Config *c, const LaunchPlan *l, const Cta *ctas,
                         const Event *heap, int live) {
    int64_t holds = (int64_t)c->sets * c->ways * c->sample_bytes, bytes[2] = {0, 0}, n = 0;
    k->round++;
    for (int back = 0; back < k->backs && (bytes[0] < holds || (c->partitions == 2 && bytes[1] < holds)); back++)
        for (int i = 0; i < live; i++) {
            const Cta *a = &ctas[heap[i].cta];
            int tile, step, side = l->side[a->sm];
            if (passed_step(l, a, back, &tile, &step)) bytes[side] += note_passed(k, s, l, tile, step, side, &n);
        }
    return n;
}

/* Fills the L2 with what the CTAs passed last, the oldest first. */
static void refill_l2(Skipper *k, L2State *s, const L2Config *c, const LaunchPlan *l, const Cta *ctas, const Event *heap,
                      int live) {
    int64_t n = look_back(k, s, c, l, ctas, heap, live);
    empty_l2(s, c, k->to);
    L2State kept = *s;
    while (n-- > 0) {
        Passed x = k->passed[n];
        Object *o = s->object + x.object;
        o->touched = 1;
        for (int32_t y = o->first; y < o->first + o->samples; y++) {
            int home = c->partitions == 2 ? (int)(s->place[y] & 1) : x.side;
            if (x.mode == LOAD) {
                if (home != x.side) touch(s, c, home, y, 0);
                touch(s, c, x.side, y, 0);
            } else write_line(s, c, x.mode, home, x.side, y);
        }
    }
    *s = kept; /* tags lie outside: only counters and queues go back */
}

/* Picoseconds a step of every live CTA took in the window; returns the mean, 0 where none stepped. */
static int64_t take_paces(Sampling *to, const Sms *sms, const Cta *ctas, const Event *heap, int live, int64_t *pace) {
    int64_t sum = 0, steps = 0;
    for (int i = 0; i < live; i++) {
        const Cta *a = &ctas[heap[i].cta];
        sum += a->spent_ps;
        steps += a->steps;
        to->alone_ps += a->steps * step_time(sms, a);
    }
    to->took_ps += sum;
    if (steps == 0) return 0;
    int64_t mean = sum / steps > 0 ? sum / steps : 1;
    for (int i = 0; i < live; i++) {
        const Cta *a = &ctas[heap[i].cta];
        int64_t mine = a->steps >= MIN_STEPS ? a->spent_ps / a->steps : mean;
        pace[heap[i].cta] = mine > 0 ? mine : 1;
    }
    return mean;
}

typedef struct { int64_t keys, at; int32_t cta, pad; } Place;

/* By what is walked, then from the back to the front. */
static int by_place(const void *x, const void *y) {
    const Place *a = x, *b = y;
    if (a->keys != b->keys) return a->keys < b->keys ? -1 : 1;
    if (a->at != b->at) return a->at < b->at ? -1 : 1;
    return a->cta < b->cta ? -1 : a->cta > b->cta;
}

/* A CTA that is held up close behind another, and as fast as it, waits for what that one fetches: it goes on with it. */
static void join_convoys(const LaunchPlan *l, const Cta *ctas, const Event *heap, int live, const Sms *sms,
                         int64_t *pace, Place *places) {
    int n = 0;
    for (int i = 0; i < live; i++) {
        const Cta *a = &ctas[heap[i].cta];
        int count = l->count[a->tile];
        if (a->step < 0 || a->step >= count || l->n_loop == 0) continue;
        int idx = loop_index(l, a->tile, a->step);
        places[n++] = (Place){2 * (int64_t)l->loop[0].base[a->tile] + l->down[a->tile], l->down[a->tile] ? -idx : idx, heap[i].cta, 0};
    }
    qsort(places, (size_t)n, sizeof(Place), by_place);
    for (int i = n - 2; i >= 0; i--) {
        const Place *me = &places[i], *ahead = &places[i + 1];
        int64_t mine = pace[me->cta], theirs = pace[ahead->cta], alone = step_time(sms, &ctas[me->cta]);
        int64_t apart = mine > theirs ? mine - theirs : theirs - mine;
        if (me->keys == ahead->keys && ahead->at - me->at <= CONVOY_STEPS && mine * 1000 > alone * 1001 && apart * CONVOY_SLACK < mine)
            pace[me->cta] = theirs;
    }
}

/* A CTA of `queue` ends a work tile at `t`: its SM's younger CTAs move up in age and get faster from then on. */
static void pass_on_age(const LaunchPlan *l, Sms *sms, Cta *ctas, int slots, int id, int goes, int64_t t, Event *queue, int n,
                        int64_t *pace) {
    Cta *a = &ctas[id];
    int64_t before[MAX_PER_SM], mine = step_time(sms, a);
    int k = 0;
    for (int i = a->sm; i < slots && k < MAX_PER_SM; i += l->sms) before[k++] = ctas[i].rank == NIL ? 0 : step_time(sms, &ctas[i]);
    leave_rank(l, ctas, slots, id);
    if (goes) sms->live[a->sm]--;
    else {
        a->rank = sms->live[a->sm] - 1;
        pace[id] = pace[id] * step_time(sms, a) / mine;
    }
    k = 0;
    for (int i = a->sm; i < slots && k < MAX_PER_SM; i += l->sms, k++) {
        if (i == id || ctas[i].rank == NIL || before[k] == 0) continue;
        int64_t after = step_time(sms, &ctas[i]);
        if (after == before[k]) continue;
        pace[i] = pace[i] * after / before[k];
        for (int j = 0; j < n; j++)
            if (queue[j].cta == i) queue[j].t = t + (queue[j].t - t) * after / before[k];
    }
    for (int j = 1; j < n; j++) sift_up(queue, j);
}

/* Every CTA moves on at its pace; those that end their work tile take the next in the order of time. Returns how many CTAs
 * are still live. */
static int skip_ahead(Skipper *k, L2State *s, const L2Config *c, const LaunchPlan *l, Cta *ctas, int slots, Event *heap,
                      int live, int *next, Sms *sms, Event *queue, int64_t *pace, int64_t jump) {
    int64_t now = heap[0].t, skipped = 0;
    int64_t first_load = c->l2_latency_ps + c->dram_latency_ps, begin = l->start_ps + first_load;
    int64_t mean = take_paces(k->to, sms, ctas, heap, live, pace), span = mean * jump;
    if (mean == 0) return live;
    join_convoys(l, ctas, heap, live, sms, pace, k->places);
    int n = live, left = 0;
    for (int i = 0; i < live; i++) { /* the queue holds when each CTA ends its work tile */
        Cta *a = &ctas[heap[i].cta];
        int steps_left = l->count[a->tile] - (a->step < 0 ? 0 : a->step);
        int64_t rest = heap[i].t - now + (a->step < 0 ? first_load : 0) + steps_left * pace[heap[i].cta];
        queue[i] = (Event){rest, heap[i].cta, 0};
        sift_up(queue, i);
    }
    while (n > 0 && queue[0].t <= span) {
        Cta *a = &ctas[queue[0].cta];
        int count = l->count[a->tile], take = tile_after(l, a->tile, next);
        if (a->step < 0) pass_over(s, l->pro, l->n_pro, a->tile);
        skipped += count - (a->step < 0 ? 0 : a->step + 1 < count ? a->step + 1 : count);
        pass_over(s, l->epi, l->n_epi, a->tile);
        int id = queue[0].cta;
        int64_t t = queue[0].t;
        if (take == NIL) {
            n = drop_first(queue, n);
            pass_on_age(l, sms, ctas, slots, id, 1, t, queue, n, pace);
            continue;
        }
        a->previous = a->tile;
        a->tile = take;
        a->step = -1;
        if (l->relaunched) {
            n = drop_first(queue, n);
            pass_on_age(l, sms, ctas, slots, id, 0, t, queue, n, pace);
            queue[n] = (Event){t, id, 0};
            n++;
            queue[n - 1].t += begin + l->count[take] * pace[id];
            sift_up(queue, n - 1);
        } else {
            queue[0].t += begin + l->count[take] * pace[id];
            sift_down(queue, n);
        }
    }
    for (int i = 0; i < n; i++) { /* the heap gets those that are under way */
        int id = queue[i].cta;
        Cta *a = &ctas[id];
        int count = l->count[a->tile];
        int64_t rest = queue[i].t - span, whole = rest / pace[id], part = rest - whole * pace[id];
        if (whole > count || (a->step < 0 && whole == count)) {
            int64_t wait = rest - count * pace[id] - first_load;
            heap[left++] = (Event){now + (wait > 0 ? wait : 0), id, 0};
        } else {
            int at = count - (int)whole;
            if (a->step < 0) pass_over(s, l->pro, l->n_pro, a->tile), skipped += at < count ? at + 1 : count;
            else skipped += (at < count ? at : count - 1) - (a->step < count ? a->step : count - 1);
            a->step = at;
            heap[left++] = (Event){now + part, id, 0};
        }
        sift_up(heap, left - 1);
    }
    k->to->skipped_ps += span;
    k->all += skipped;
    int w = k->to->windows - 1;
    k->to->carried[w] += skipped;
    k->to->carried[w + 1] += skipped;
    return left;
}

static void start_skipper(Skipper *k, const L2State *s, const LaunchPlan *l, Cta *ctas, int slots) {
    for (int i = 0; i < l->tiles; i++) {
        k->total += l->count[i];
        if (l->count[i] > k->backs) k->backs = l->count[i];
    }
    begin_window(k, s, ctas, slots);
}

/* What is due after a step: the next window, or a jump and the refilling of the L2. Returns how many CTAs are live. */
static int go_on(Skipper *k, L2State *s, const L2Config *c, const LaunchPlan *l, Cta *ctas, int slots, Event *heap, int live,
                 int *next, Sms *sms, Event *queue, int64_t *pace) {
    Sampling *to = k->to;
    if (k->settling) {
        if (k->loads < to->settle * slots) return live;
        to->carried[to->windows] += 2 * k->loads;
        k->all += k->loads;
        begin_window(k, s, ctas, slots);
        return live;
    }
    if (k->loads < to->window * slots) return live;
    int64_t half = (k->total - k->all - k->loads) / (2 * slots), jump = to->jump < half ? to->jump : half;
    if (to->windows + 1 >= to->max_windows || jump < 2 * (to->settle + to->window)) {
        k->on = 0;
        return live;
    }
    end_window(k, s);
    k->all += k->loads;
    live = skip_ahead(k, s, c, l, ctas, slots, heap, live, next, sms, queue, pace, jump);
    refill_l2(k, s, c, l, ctas, heap, live);
    k->settling = 1;
    k->loads = 0;
    return live;
}

/* Closes the last window, or hands what it would have stood for to the one before. */
static void finish_skipper(Skipper *k, const L2State *s) {
    Sampling *to = k->to;
    if (!k->settling && k->loads > 0) end_window(k, s);
    else if (to->windows > 0) to->carried[to->windows - 1] += to->carried[to->windows] + 2 * (k->settling ? k->loads : 0);
}

#endif
