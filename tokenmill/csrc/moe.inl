// Mixture of experts: which experts a token goes to, and the experts themselves.
//
// Rows (a token for one of its experts) are sorted by expert, so each active expert's weights are read once. An expert
// is two matrix products over its own rows, in the very steps of linear.inl, so a row's bits do not depend on the
// others; a token's experts are added up in ascending order.

constexpr int kMaxExperts = 1024;

TM_INLINE float sigmoid_one(float x) { return 1.0f / (1.0f + exp_one(-x)); }

// In place: x / sum of exp(x - max).
static void softmax_row(float* x, int n) {
    V top = vset(-INFINITY);
    float m = -INFINITY;
    int i = 0;
    for (; i + 16 <= n; i += 16) top = vmax(top, vload(x + i));
    if (i) m = vmaximum(top);
    for (; i < n; i++) m = x[i] > m ? x[i] : m;
    V sum = vset(0.0f);
    for (i = 0; i < n; i += 16) {
        alignas(64) float t[16];
        vstore(t, vexp(vsub(load_part(x + i, n - i), vset(m))));
        for (int j = n - i; j < 16; j++) t[j] = 0.0f;
        store_part(x + i, vload(t), n - i);
        sum = vadd(sum, vload(t));
    }
    const V total = vset(vsum(sum));
    for (i = 0; i < n; i += 16) store_part(x + i, vdiv(load_part(x + i, n - i), total), n - i);
}

// The index of the largest of n that is not yet taken (set to -infinity when it is); the first among equals.
TM_INLINE int take_largest(float* x, int n) {
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    x[best] = -INFINITY;
    return best;
}

void route(const RouteArgs& a, Thread& thread) {
    int begin, end;
    thread.share(*a.rows, begin, end);
    const int experts = a.num_experts, width = experts + (a.shared_gate ? a.shared : 0), chosen = a.top_k + a.shared;
    for (int t = begin; t < end; t++) {
        const float* logits = a.logits + size_t(t) * size_t(width);
        int32_t* ids = a.ids + size_t(t) * size_t(chosen);
        float *weights = a.weights + size_t(t) * size_t(chosen), scores[kMaxExperts], choice[kMaxExperts];
        std::memcpy(scores, logits, size_t(experts) * sizeof(float));
        if (a.scoring == Scoring::Softmax) softmax_row(scores, experts);
        if (a.scoring == Scoring::Sigmoid)
            for (int e = 0; e < experts; e++) scores[e] = sigmoid_one(scores[e]);
        for (int e = 0; e < experts; e++) choice[e] = a.bias ? scores[e] + a.bias[e] : scores[e];
        if (a.num_groups > 1) {
            const int size = experts / a.num_groups;
            float best[kMaxExperts], copy[kMaxExperts];
            for (int g = 0; g < a.num_groups; g++) {
                std::memcpy(copy, choice + g * size, size_t(size) * sizeof(float));
                const int first = take_largest(copy, size);
                best[g] = choice[g * size + first];
                if (a.group_sum && size > 1) best[g] += choice[g * size + take_largest(copy, size)];
            }
            bool kept[kMaxExperts] = {};
            for (int i = 0; i < a.top_groups; i++) kept[take_largest(best, a.num_groups)] = true;
            for (int e = 0; e < experts; e++)
                if (!kept[e / size]) choice[e] = -INFINITY;
        }
        bool taken[kMaxExperts] = {};
        for (int i = 0; i < a.top_k; i++) taken[take_largest(choice, experts)] = true;
        int n = 0;
        for (int e = 0; e < experts; e++)
            if (taken[e]) {
                ids[n] = e;
                weights[n++] = scores[e];
            }
        for (; n < a.top_k; n++) {  // fewer than top_k only where logits are NaN
            ids[n] = experts - 1;
            weights[n] = NAN;
        }
        if (a.scoring == Scoring::SoftmaxOfChosen) softmax_row(weights, a.top_k);
        if (a.renormalise) {
            float sum = 0.0f;
            for (int i = 0; i < a.top_k; i++) sum += weights[i];
            for (int i = 0; i < a.top_k; i++) weights[i] /= sum;
        }
        for (int i = 0; i < a.top_k; i++) weights[i] *= a.scale;
        for (int i = 0; i < a.shared; i++) {
            ids[a.top_k + i] = experts + i;
            weights[a.top_k + i] = a.shared_gate ? sigmoid_one(logits[experts + i]) : 1.0f;
        }
    }
}

// A part of the scratch that begins `rows` rows further on.
TM_INLINE Scratch shifted(Scratch s, size_t rows, size_t cols) {
    const size_t groups = (cols + kGroup - 1) / kGroup;
    s.x += rows * cols;
    s.q += rows * cols;
    s.scale += rows * groups;
    s.scaled_sum += rows * groups;
    s.sum += 3 * rows * groups;
    return s;
}

// The matrices of one step of all experts, over rows sorted by expert. widest: columns of the widest matrix.
template <class Prepare, class Start>
static void expert_step(const ExpertsArgs& a, const ExpertRows& rows, const Matrix* const* matrices, size_t widest, Thread& thread,
                        Prepare&& prepare, Start&& start) {
    const int total = rows.start[a.num_experts];
    Scratch mine = a.scratch;
    mine.bytes += 2 * size_t(thread.index) * kTileRows * widest;
    mine.row += size_t(thread.index) * widest;
    int begin, end;
    thread.share(total, begin, end);
    int e = 0;
    for (int r = begin; r < end; r++) {
        while (r >= rows.start[e + 1]) e++;
        const Matrix& w = *matrices[e];
        const int first = rows.start[e];
        prepare_row(prepare(e, r, mine.row), w, block_of(r - first, rows.start[e + 1] - first), r - first,
                    shifted(mine, size_t(first), widest));
    }
    thread.barrier();
    int tiles = 0;
    for (e = 0; e < a.num_experts; e++)
        if (rows.start[e + 1] > rows.start[e]) tiles += matrices[e]->tiles;
    const int even = tiles / (thread.count * 8), most = even < 1 ? 1 : even > 8 ? 8 : even;
    for (int first, last; thread.take(tiles, most, first, last);) {
        int base = 0;
        for (e = 0; e < a.num_experts && base < last; e++) {
            const int count = rows.start[e + 1] - rows.start[e];
            if (!count) continue;
            const int lo = first > base ? first - base : 0, hi = last - base < matrices[e]->tiles ? last - base : matrices[e]->tiles;
            if (lo < hi) {
                const LinearArgs args = start(e);
                multiply_tiles(args, shifted(mine, size_t(rows.start[e]), widest), count, lo, hi);
            }
            base += matrices[e]->tiles;
        }
    }
    thread.barrier();
}

static void sort_rows(const ExpertsArgs& a, int t0, int tokens, const ExpertRows& rows) {
    const int k = a.per_token;
    std::memset(rows.start, 0, size_t(a.num_experts + 1) * sizeof(int32_t));
    for (int i = 0; i < tokens * k; i++) rows.start[a.ids[size_t(t0) * size_t(k) + size_t(i)] + 1]++;
    for (int e = 0; e < a.num_experts; e++) rows.start[e + 1] += rows.start[e];
    // start[e] moves to the end of e while its rows are placed, and is then put back.
    for (int i = 0; i < tokens * k; i++) {
        const int row = rows.start[a.ids[size_t(t0) * size_t(k) + size_t(i)]]++;
        rows.entry[row] = i;
        rows.place[i] = row;
    }
    for (int e = a.num_experts; e > 0; e--) rows.start[e] = rows.start[e - 1];
    rows.start[0] = 0;
}

void experts(const ExpertsArgs& a, Thread& thread) {
    const int n = *a.rows, k = a.per_token, hidden = a.hidden;
    const size_t widest = size_t(a.widest);
    for (int t0 = 0; t0 < n; t0 += a.tokens_at_once) {
        const int tokens = n - t0 < a.tokens_at_once ? n - t0 : a.tokens_at_once;
        if (thread.index == 0) sort_rows(a, t0, tokens, a.sorted);
        thread.barrier();
        const ExpertRows& rows = a.sorted;
        const size_t entry0 = size_t(t0) * size_t(k);
        auto args = [&](const Matrix* w, const float* bias, float* out) {
            LinearArgs l{};
            l.weight = w;
            l.bias = bias;
            l.out = out;
            return l;
        };
        expert_step(
            a, rows, a.gate_up, widest, thread,
            [&](int, int r, float* row) {
                const float* x = a.x + size_t(t0 + rows.entry[r] / k) * size_t(hidden);
                if (!a.weigh_input) return x;
                const V weight = vset(a.weights[entry0 + size_t(rows.entry[r])]);
                for (int i = 0; i < hidden; i += 16) store_part(row + i, vmul(load_part(x + i, hidden - i), weight), hidden - i);
                return (const float*)row;
            },
            [&](int e) {
                return args(a.gate_up[e], a.gate_up_bias ? a.gate_up_bias[e] : nullptr,
                            a.gate_up_out + size_t(rows.start[e]) * 2 * widest);
            });
        expert_step(
            a, rows, a.down, widest, thread,
            [&](int e, int r, float* row) {
                const int inner = a.down[e]->cols;
                act_row(a.gate_up_out + size_t(rows.start[e]) * 2 * widest + size_t(r - rows.start[e]) * 2 * size_t(inner), a.act,
                        inner, row);
                return (const float*)row;
            },
            [&](int e) {
                return args(a.down[e], a.down_bias ? a.down_bias[e] : nullptr, a.down_out + size_t(rows.start[e]) * size_t(hidden));
            });
        int begin, end;
        thread.share(tokens, begin, end);
        for (int t = begin; t < end; t++) {
            float* out = a.out + size_t(t0 + t) * size_t(hidden);
            for (int i = 0; i < hidden; i += 16) {
                V sum = load_part(out + i, hidden - i);
                for (int j = 0; j < k; j++) {
                    const size_t entry = size_t(t) * size_t(k) + size_t(j);
                    const V y = load_part(a.down_out + size_t(rows.place[entry]) * size_t(hidden) + i, hidden - i);
                    sum = a.weigh_input ? vadd(sum, y) : vfma(vset(a.weights[entry0 + entry]), y, sum);
                }
                store_part(out + i, sum, hidden - i);
            }
        }
        thread.barrier();  // the next tokens use the same buffers
    }
}
