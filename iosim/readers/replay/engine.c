/* Replays the tile accesses of one kernel launch through a model of the L2, in the order in which CTAs reach them.
 *
 * A CTA walks the steps of its work tile. At a step it asks for the next step's tiles and computes; its next step starts
 * when that is done and those tiles have arrived. CTAs of an SM share it, the older ones with a larger share. cache.h is the L2,
 * launch.h what is played, coarse.h and windows.h how a long launch is played in coarse steps or in part, shared.h what Python
 * hands over and check.h what is refused of it.
 *
 * All times are integers (picoseconds); the same input gives the same result on every machine.
 */
#include "check.h"
#include "coarse.h"
#include "lines.h"
#include "windows.h"

#ifndef IOSIM_SOURCES
#define IOSIM_SOURCES ""
#endif

/* A mark of the sources that this was compiled from (build.py), by which Python knows an engine of another version. */
const char iosim_sources[] = "iosim-engine-sources:" IOSIM_SOURCES ";";

#ifdef __wasm__ /* where nobody can look at `progress` meanwhile: it is told */
__attribute__((import_module("env"), import_name("iosim_tick"))) extern void iosim_tick(int32_t started);
#else
static inline void iosim_tick(int32_t started) { (void)started; }
#endif

static void free_play(Play *play) {
    free(play->ctas); free(play->running); free(play->tournament.node);
    free(play->sms.step); free(play->sms.live); free(play->sms.factor);
}

/* CTAs that begin together claim their next work tiles in an order by chance: whose add reaches the counter first. */
static void claim_first(Play *play) {
    Cta *ctas = play->ctas;
    for (int i = 0; i < play->slots; i++) {
        int j = (int)(hash32((uint32_t)i + 54321U) % (uint32_t)(i + 1));
        ctas[i].claimed = ctas[j].claimed;
        ctas[j].claimed = claim(play->plan, play->next);
    }
}

/* Room for the CTAs of a launch, every slot with its first work tile; 0 where there is no memory. */
static int make_play(Play *play, int64_t start) {
    const LaunchPlan *l = play->plan;
    Sms *sms = &play->sms;
    size_t slots = (size_t)play->slots;
    int per_sm = (play->slots + l->sms - 1) / l->sms;
    sms->most = l->ranks < 2 ? 1 : per_sm;
    play->ctas = malloc(sizeof(Cta) * slots);
    play->running = malloc(sizeof(Event) * slots);
    if (!make_tournament(&play->tournament, play->slots, start + l->start_ps)) return 0;
    sms->step = malloc(sizeof(int64_t) * (size_t)l->sms);
    sms->live = calloc((size_t)l->sms, sizeof(int32_t));
    sms->factor = malloc(sizeof(int32_t) * (size_t)(per_sm + 1) * (size_t)sms->most);
    if (!play->ctas || !play->running || !sms->step || !sms->live || !sms->factor) return 0;
    for (int i = 0; i < play->slots; i++) {
        play->ctas[i] = (Cta){.tile = i * l->group, .step = -1, .sm = i % l->sms, .rank = i / l->sms, .previous = NIL, .last_ps = -1};
        sms->live[i % l->sms]++;
        play->running[play->live] = (Event){start + l->start_ps, i, 0};
        sift_up(play->running, play->live++);
    }
    for (int q = 0; q < l->queues; q++) /* slots have the first work tiles, of all queues in turn */
        play->next[q] = (play->slots + (q - play->slots % l->queues + l->queues) % l->queues) * l->group;
    if (l->ahead) claim_first(play);
    fill_factors(sms, l, per_sm);
    for (int i = 0; i < l->sms; i++) sms->step[i] = l->step_ps + spread((uint32_t)(i / l->sms_alike) + 12345U, l->step_ps, l->sm_spread_ppm);
    return 1;
}

/* A CTA has ended its work tile and takes the next; 0 where there is none for it. */
static int take_next_tile(Play *play, int id) {
    const LaunchPlan *l = play->plan;
    Cta *a = &play->ctas[id];
    int take = tile_after(l, a, play->next);
    if (l->relaunched || take == NIL) leave_rank(l, play->ctas, play->slots, id);
    if (take == NIL) {
        play->sms.live[a->sm]--;
        return 0;
    }
    if (l->relaunched) a->rank = play->sms.live[a->sm] - 1;
    a->previous = a->tile;
    a->tile = take;
    a->step = -1;
    a->last_ps = -1;
    return 1;
}

/* Work tiles that are done: those that were taken, less what running CTAs have still to do of theirs, in whole tiles. */
static int32_t tiles_done(const Play *play) {
    const LaunchPlan *l = play->plan;
    double ahead = 0.0;
    for (int i = 0; i < play->slots; i++) {
        const Cta *a = &play->ctas[i];
        int n = l->count[a->tile];
        if (a->step < 0) ahead += 1.0;
        else if (a->step < n) ahead += (double)(n - a->step) / n;
        if (l->ahead && a->claimed != NIL) ahead += 1.0;
    }
    return play->next[0] > ahead ? (int32_t)(play->next[0] - ahead) : 0;
}

/* Replays a launch; returns its end time, or NO_MEMORY, STOPPED when `stop` was set, REFUSED. `to` is NULL where every step
 * is to be played. */
int64_t iosim_replay(L2State *s, const L2Config *c, const LaunchPlan *l, int64_t start, Trace *tr, Sampling *to,
                     volatile int32_t *progress, volatile int32_t *stop) {
    if (!l2_is_sound(s, c) || !plan_is_sound(s, c, l) || !trace_is_sound(tr, l) || !sampling_is_sound(to) || start < 0)
        return REFUSED;
    int groups = l->tiles / l->group;
    Play play = {.l2 = s, .config = c, .plan = l, .slots = l->slots < groups ? l->slots : groups};
    if (play.slots <= 0) return start;
    Windows windows = {.play = &play, .plan = to, .phase = MEASURE_TO_END};
    if (!make_play(&play, start) || (to && !make_windows(&windows))) {
        free_windows(&windows);
        free_play(&play);
        return NO_MEMORY;
    }
    if (to) start_windows(&windows);
    s->latencies = l->waits ? l->waits : 1;
    int64_t end = start;
    uint32_t count = 0;
    while (play.live > 0) {
        /* The earliest event of all CTAs. What the CTA does depends on its step: -1 begins a work tile,
         * 0 to n - 1 are the steps of its loop, n stores its output and takes the next tile. */
        Event ev = to ? play.running[0] : first_of(&play.tournament);
        Cta *a = &play.ctas[ev.cta];
        int tile = a->tile, p = l->side[a->sm], n = l->count[tile];
        int64_t again;
        if (tr && tr->bin_kept) note_kept(s, c, tr, ev.t);
        if ((++count & 0xffff) == 0) {
            int32_t done = tiles_done(&play);
            if (progress) *progress = done;
            iosim_tick(done);
            if (stop && *stop) { end = STOPPED; break; }
        }
        if (a->step < 0) {
            if (tr && tr->cta_start) { tr->cta_start[tile] = ev.t; tr->cta_sm[tile] = a->sm; }
            again = run_templates(s, c, l->pro, l->n_pro, tile, 0, p, ev.t, tr);
            if (ev.t + l->open_ps > again) again = ev.t + l->open_ps;
            if (n > 0 && !l->coarse) {
                /* The tiles of step 0 are asked for with the prologue: the first step begins when both are there. */
                int64_t x = run_templates(s, c, l->loop, l->n_loop, tile, loop_index(l, tile, 0), p, ev.t, tr);
                if (x > again) again = x;
                windows.phase_loads++;
            }
            a->step = 0;
        } else if (a->step < n && l->coarse) {
            again = coarse_step(s, c, l, &play.sms, a, p, ev.t, tr);
        } else if (a->step < n) {
            int64_t step = this_step(l, &play.sms, a);
            again = ev.t + step;
            /* The next step's tiles are asked for as this one computes (asynchronous copies): a CTA waits
             * only for what takes longer than the step. */
            if (a->step + 1 < n) {
                int64_t x = run_templates(s, c, l->loop, l->n_loop, tile, loop_index(l, tile, a->step + 1), p, ev.t, tr);
                again = next_step_at(s, c, l, ev.t, step, x);
                windows.phase_loads++;
            }
            if (to) note_pace(a, ev.t);
            a->step++;
        } else {
            run_templates(s, c, l->epi, l->n_epi, tile, 0, p, ev.t, tr);
            if (tr && tr->cta_end) tr->cta_end[tile] = ev.t;
            if (ev.t > end) end = ev.t;
            if (!take_next_tile(&play, ev.cta)) {
                if (to) play.live = drop_first(play.running, play.live);
                else comes_no_more(&play.tournament, ev.cta), play.live--;
                continue;
            }
            again = ev.t + l->start_ps;
        }
        if (to) {
            play.running[0].t = again;
            sift_down(play.running, play.live);
            if (windows.phase != MEASURE_TO_END) advance_windows(&windows);
        } else comes_again(&play.tournament, ev.cta, again);
    }
    /* L2s of their own are not coherent: what is dirty at a launch's end goes to memory. */
    if (c->apart && end != STOPPED) clean_all(s, c);
    if (to && end != STOPPED) {
        finish_windows(&windows);
        end = (end > s->now ? end : s->now) + to->skipped_ps;
    }
    free_windows(&windows);
    free_play(&play);
    if (progress && end != STOPPED) *progress = l->tiles;
    return end;
}

/* When a CTA was at step `n` of its work tile: linear between the times recorded every `every` steps, `marks` a tile. */
static int64_t recorded_ps(const LaunchPlan *l, const int64_t *at, const int64_t *end, int marks, int every, int tile, int n) {
    int count = l->count[tile], k = n / every, last = (count - 1) / every;
    int64_t from = at[(int64_t)tile * marks + k], to = k < last ? at[(int64_t)tile * marks + k + 1] : end[tile];
    return from + (to - from) * (n - k * every) / (k < last ? every : count - k * every);
}

/* Plays a launch at recorded times in place of its own: `at` by work tile x mark, `end` and `side` by work tile. Returns
 * 0, NO_MEMORY or REFUSED. */
int32_t iosim_replay_recorded(L2State *s, const L2Config *c, const LaunchPlan *l, const int64_t *at, const int64_t *end,
                              int32_t marks, int32_t every, const uint8_t *side) {
    if (!l2_is_sound(s, c) || marks < 1 || every < 1 || !tiles_are_sound(s, l) || !sides_are_sound(c, side, l->tiles))
        return REFUSED;
    for (int i = 0; i < l->tiles; i++)
        if (l->count[i] > 0 && (l->count[i] - 1) / every >= marks) return REFUSED;
    Event *heap = malloc(sizeof(Event) * (size_t)l->tiles);
    int32_t *step = malloc(sizeof(int32_t) * (size_t)l->tiles);
    int live = 0;
    if ((!heap || !step) && l->tiles > 0) { free(heap); free(step); return NO_MEMORY; }
    for (int i = 0; i < l->tiles; i++) {
        step[i] = -1;
        heap[live] = (Event){at[(int64_t)i * marks], i, 0};
        sift_up(heap, live++);
    }
    while (live > 0) {
        Event ev = heap[0];
        int tile = ev.cta, n = l->count[tile], p = side[tile], next = step[tile] + 1;
        if (step[tile] >= n) {
            run_templates(s, c, l->epi, l->n_epi, tile, 0, p, ev.t, NULL);
            live = drop_first(heap, live);
            continue;
        }
        if (step[tile] < 0) run_templates(s, c, l->pro, l->n_pro, tile, 0, p, ev.t, NULL);
        /* The same order of accesses as in iosim_replay, at the times that were recorded. */
        if (next < n) run_templates(s, c, l->loop, l->n_loop, tile, loop_index(l, tile, next), p, ev.t, NULL);
        step[tile] = next;
        int64_t t = next < n ? recorded_ps(l, at, end, marks, every, tile, next) : end[tile];
        heap[0].t = t > ev.t ? t : ev.t;
        sift_down(heap, live);
    }
    free(heap); free(step);
    return 0;
}

/* Touches `n` objects before the launch, one after the other; `dirty` leaves their lines written. Returns 0 or REFUSED. */
int32_t iosim_place(L2State *s, const L2Config *c, int64_t first, int64_t n, int32_t dirty) {
    if (!l2_is_sound(s, c) || first < 0 || n < 0 || first > s->objects - n || (dirty != 0 && dirty != 1)) return REFUSED;
    for (Object *o = s->object + first; o < s->object + first + n; o++) {
        o->touched = 1;
        for (int32_t x = o->first; x < o->first + o->samples; x++) {
            int home = has_homes(c) ? (int)(s->place[x] & 1) : 0;
            touch(s, c, home, x, dirty);
            for (int p = 0; p < c->partitions && !dirty; p++)
                if (p != home) touch(s, c, p, x, 0);
        }
    }
    return 0;
}

/* `n` accesses, one after the other and without times of their own. Returns 0 or REFUSED. */
int32_t iosim_access(L2State *s, const L2Config *c, int64_t n, const uint8_t *mode, const int32_t *object, const uint8_t *side) {
    if (!l2_is_sound(s, c) || !sides_are_sound(c, side, n)) return REFUSED;
    for (int64_t i = 0; i < n; i++)
        if (mode[i] > LAST_LOAD || object[i] < 0 || object[i] >= s->objects) return REFUSED;
    for (int64_t i = 0; i < n; i++) access_object(s, c, mode[i], object[i], side[i], s->now, NULL, 1);
    return 0;
}

/* The lines that are followed of objects of these sizes, which lie one after the other, each from a line's start.
 *
 * `first` [objects + 1] takes where each object's lines begin, `object` and `place` [most] the object of each line and twice
 * its set plus its home. Returns how many there are, NO_MEMORY or REFUSED. */
int64_t iosim_sample(const Sampler *a, const int32_t *size, int64_t objects, int64_t most, int32_t *first, int32_t *object,
                     uint32_t *place) {
    if (!sampler_is_sound(a) || objects < 0) return REFUSED;
    int64_t lines = 0, each = a->page / a->twins;
    for (int64_t o = 0; o < objects; o++) lines += ((int64_t)size[o] + a->line_bytes - 1) / a->line_bytes;
    int64_t pages = (lines + a->page - 1) / a->page, of_page = a->placements * a->twins * ((each + a->stride - 1) / a->stride);
    if (most < pages * of_page) return REFUSED;
    int64_t *places = malloc(sizeof(int64_t) * (size_t)(a->placements * pages + 1)), taken = NO_MEMORY;
    Sampled *rooms[2] = {malloc(sizeof(Sampled) * (size_t)of_page), malloc(sizeof(Sampled) * (size_t)of_page)};
    int there = places && rooms[0] && rooms[1];
    for (int p = 0; there && p < a->placements; p++)
        there = page_places(a, pages, each, (int64_t)a->sets * a->stride, p, places + p * pages) == 0;
    if (there) taken = sample_pages(a, size, objects, pages, places, rooms, first, object, place);
    free(places); free(rooms[0]); free(rooms[1]);
    return taken;
}

/* The first set of each of so many pages in a placement, of `each` sets a page. Returns 0, NO_MEMORY or REFUSED. */
int32_t iosim_page_places(const Sampler *a, int64_t pages, int64_t each, int64_t sets, int32_t placement, int64_t *place) {
    if (!sampler_is_sound(a) || pages < 0 || each < 1 || sets < 1 || placement < 0) return REFUSED;
    return page_places(a, pages, each, sets, placement, place);
}

/* Bytes of the structures of shared.h, in its order. */
void iosim_sizes(int32_t *out) {
    const size_t sizes[] = {sizeof(L2Config), sizeof(Object), sizeof(L2State), sizeof(Trace), sizeof(Sampler),
                            sizeof(Template), sizeof(LaunchPlan), sizeof(Sampling)};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) out[i] = (int32_t)sizes[i];
}
