/* What an entry is given is looked at before anything is touched: whatever passes here reaches no memory that is not its
 * own. Whether arrays are as long as they should be is for the caller to see to.
 */
#ifndef IOSIM_CHECK_H
#define IOSIM_CHECK_H
#include "launch.h"

#define MOST_WAITS 1000 /* latencies of HBM in a step */
#define MOST_SLOW_PPM 2000000000 /* two thousand times: what a factor can hold */

/* One or two partitions, or several L2s, ways that are followed, and room for a dirty line in every set. */
static int l2_is_sound(const L2State *s, const L2Config *c) {
    if (c->side_sets && (c->side_sets < 1 || c->side_ways < 1 || c->side_ways > MAX_WAYS || !s->side_tags || !s->side_set))
        return 0;
    return c->partitions >= 1 && c->partitions <= (c->apart ? MAX_PARTITIONS : 2) && c->sets >= 1 && c->ways >= 1 && c->ways <= MAX_WAYS &&
           c->dirty_share >= 256 && s->objects >= 0 && s->stands >= 1 && s->whole >= 1;
}

static int sides_are_sound(const L2Config *c, const uint8_t *side, int64_t n) {
    uint8_t most = 0;
    for (int64_t i = 0; i < n; i++) most = side[i] > most ? side[i] : most;
    return most < c->partitions;
}

typedef struct { int32_t least, most; } Range;

/* Loop indices of a work tile that has some. */
static Range indices_of(const LaunchPlan *l, int tile) {
    int32_t first = l->first[tile], count = l->count[tile];
    if (!l->list) return (Range){first, first + count - 1};
    Range r = {l->list[first], l->list[first]};
    for (int32_t i = first + 1; i < first + count; i++) {
        r.least = l->list[i] < r.least ? l->list[i] : r.least;
        r.most = l->list[i] > r.most ? l->list[i] : r.most;
    }
    return r;
}

/* Whether all objects that a work tile accesses by these templates, at these loop indices, are there. */
static int reaches(const L2State *s, const Template *list, int n, int tile, Range at) {
    for (int k = 0; k < n; k++) {
        const Template *t = &list[k];
        if (t->base[tile] == NIL) continue;
        if (t->skips && (!t->block || at.least < 0 || at.most >= t->skipped)) return 0;
        int64_t a = (int64_t)t->coef * at.least, b = (int64_t)t->coef * at.most, r = (int64_t)(t->rows - 1) * t->row_stride;
        if (t->turn) { /* the first block of the first head, the last one of the last */
            if (t->turn < 0 || t->turn_coef < 0 || t->coef < 0 || at.least < 0) return 0;
            a = (int64_t)(at.least / t->turn) * t->turn_coef;
            b = (int64_t)(at.most / t->turn) * t->turn_coef + (int64_t)(t->turn - 1) * t->coef;
        }
        int64_t least = t->base[tile] + (a < b ? a : b) + (r < 0 ? r : 0);
        int64_t most = t->base[tile] + (a < b ? b : a) + (r > 0 ? r : 0) + t->span - 1;
        if (least < 0 || most >= s->objects) return 0;
    }
    return 1;
}

static int templates_are_sound(const Template *list, int n) {
    if (n < 0 || n > MAX_TEMPLATES) return 0;
    for (int k = 0; k < n; k++)
        if (list[k].mode < LOAD || list[k].mode > LAST_LOAD || list[k].rows < 0 || list[k].span < 0 || !list[k].base) return 0;
    return 1;
}

/* Work tiles and what they access. */
static int tiles_are_sound(const L2State *s, const LaunchPlan *l) {
    if (l->tiles < 0 || l->listed < 0 || !l->first || !l->count || !l->down) return 0;
    if (!templates_are_sound(l->pro, l->n_pro) || !templates_are_sound(l->loop, l->n_loop) ||
        !templates_are_sound(l->epi, l->n_epi)) return 0;
    const Range outside = {0, 0};
    for (int tile = 0; tile < l->tiles; tile++) {
        int64_t first = l->first[tile], count = l->count[tile];
        if (count < 0 || first + count > INT32_MAX || (l->list && count > 0 && (first < 0 || first + count > l->listed)))
            return 0;
        if (!reaches(s, l->pro, l->n_pro, tile, outside) || !reaches(s, l->epi, l->n_epi, tile, outside)) return 0;
        if (count > 0 && !reaches(s, l->loop, l->n_loop, tile, indices_of(l, tile))) return 0;
    }
    return 1;
}

/* Coarse steps: every work tile's first and last stand for some small steps. */
static int coarse_is_sound(const LaunchPlan *l) {
    if (l->coarse == 0) return 1;
    if (l->coarse < 0 || l->walks < 0 || l->walks > l->n_loop || !l->lead || !l->trail) return 0;
    for (int i = 0; i < l->tiles; i++)
        if (l->count[i] > 0 && (l->lead[i] < 1 || l->trail[i] < 1)) return 0;
    return 1;
}

/* A launch with the CTAs and SMs that play it. */
static int plan_is_sound(const L2State *s, const L2Config *c, const LaunchPlan *l) {
    if (l->queues != 1 && (l->queues != c->partitions || l->sms % l->queues || l->ahead)) return 0;
    if (l->slots < 1 || l->sms < 1 || l->sms_alike < 1 || l->parts < 1 || l->step_spread_ppm < 0 || l->step_spread_ppm >= 1000000 || l->group < 1 || l->static_stride < 0 || l->static_stride > INT32_MAX - l->tiles ||
        l->waits < 0 || l->waits > MOST_WAITS || l->ranks < 1 || !l->share_ppm || !l->side) return 0;
    for (int i = 0; i < l->ranks; i++)
        if (l->share_ppm[i] < 1) return 0;
    if (l->crowds < 0 || (l->crowds > 0 && !l->slow_ppm)) return 0;
    for (int i = 0; i < l->crowds; i++)
        if (l->slow_ppm[i] < 1 || l->slow_ppm[i] > MOST_SLOW_PPM) return 0;
    return sides_are_sound(c, l->side, l->sms) && tiles_are_sound(s, l) && l->tiles % l->group == 0 && coarse_is_sound(l);
}

static int trace_is_sound(const Trace *tr, const LaunchPlan *l) {
    if (!tr) return 1;
    if (tr->bin_ps > 0 && (tr->bins < 1 || !tr->bin_hit || !tr->bin_miss)) return 0;
    if (tr->bin_kept && (tr->bin_ps < 1 || tr->kept < 0)) return 0;
    if (tr->order && !tr->seen) return 0;
    return !tr->cta_start || (tr->ctas == l->tiles && tr->cta_sm);
}

static int sampler_is_sound(const Sampler *a) {
    return a->line_bytes >= 1 && a->twins >= 1 && a->twin_lines >= 1 && a->page >= a->twins * a->twin_lines &&
           a->page % (a->twins * a->twin_lines) == 0 && a->shuffle_256ths >= 0 && a->run_pages >= 1 && a->sets >= 1 &&
           a->stride >= 1 && a->placements >= 1;
}

static int sampling_is_sound(const Sampling *to) {
    return !to || (to->max_windows >= 1 && to->windows == 0 && to->played && to->carried && to->read && to->write);
}

#endif
