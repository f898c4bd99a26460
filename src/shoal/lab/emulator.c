// Carries packets between the hosts of a lab as slow, long and lossy links would.
//
// In flow packets that hosts send, from one descriptor each (a TUN device or a packet socket), and commands; out flow
// the same packets, later or never, and counts. Invariant: a packet leaves at the moment that the model gives it or
// as soon after it as this process gets to run, and how late it was is counted.
//
//   emulator CONTROL HEADER VNET SEED FD...      (all numbers; hosts are numbered by the order of their FDs)
//   HEADER  bytes of link header before each IP packet: 0 for TUN, 14 for packet sockets
//   VNET    1 if each packet begins with a virtio header, so that the kernel hands over unsegmented TCP
//
// A packet from a to b: a's uplink (rate, queue) -> loss -> the pair's own bottleneck -> latency and jitter
// -> b's downlink (rate, queue). Commands, one a datagram, answered by one:
//   host I UP DOWN QUEUE_UP QUEUE_DOWN                  bytes/s (0: no limit), bytes
//   pair A B OPEN LATENCY JITTER JITTER_TIME LOSS RATE QUEUE       seconds, fraction, bytes/s, bytes
//   mark     forget lateness so far        stats     counts so far, as JSON
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/virtio_net.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef int64_t ns_t;
enum { VNET_BYTES = 10, FRAME_BYTES = 14, LARGEST = 70000, LATE_BUCKETS = 64, BURST = 32, DELIVERIES = 256 };
static const ns_t SECOND = 1000000000, LINE_TIME = 1000000;  // A unit takes at most LINE_TIME of the narrowest line.
static const uint64_t MOST_IN_FLIGHT = 1ull << 30;

typedef struct packet {
    int bytes, wire, from, to;  // `wire` is what it takes of a line, frame headers of every segment included.
    uint8_t data[];
} packet;

typedef struct {
    double ns_per_byte, queue_bytes;
    ns_t free_at;  // When everything that was booked has left.
} line;

typedef struct {
    int fd;
    line up, down;
    uint64_t sent, sent_bytes, received, received_bytes, lost, queue_drops, closed, failed;
} host;

typedef struct {
    int open;
    ns_t latency, grid, grid_at, last;  // Jitter wanders between values `grid` apart, so that it does not reorder.
    double jitter, keep, before, after, loss;
    line own;
} path;

typedef struct {
    ns_t at;
    uint64_t order;
    int arrived;  // 0: at the receiver's downlink; 1: through it.
    packet *what;
} event;

static host *hosts;
static path *paths;
static int host_count, header, vnet;
static event *heap;
static size_t heap_size, heap_room;
static uint64_t orders, in_flight, late_counts[LATE_BUCKETS], random_state[2];

static ns_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND + t.tv_nsec;
}

// --- chance -------------------------------------------------------------------------------------------

static double chance(void) {  // xorshift128+
    uint64_t a = random_state[0], b = random_state[1];
    random_state[0] = b;
    a ^= a << 23;
    random_state[1] = a ^ b ^ (a >> 17) ^ (b >> 26);
    return ((random_state[1] + b) >> 11) * 0x1p-53;
}

static double normal(void) {
    double radius = sqrt(-2 * log(1 - chance())), angle = 6.283185307179586 * chance();
    double value = radius * cos(angle);
    return value > 3 ? 3 : value < -3 ? -3 : value;
}

static ns_t jitter_at(path *p, ns_t t) {
    if (p->jitter <= 0) return 0;
    if (t - p->grid_at > 100 * p->grid) {  // Long idle: nothing is remembered.
        p->grid_at = t;
        p->before = p->jitter * normal();
        p->after = p->keep * p->before + sqrt(1 - p->keep * p->keep) * p->jitter * normal();
    }
    while (t >= p->grid_at + p->grid) {
        p->grid_at += p->grid;
        p->before = p->after;
        p->after = p->keep * p->before + sqrt(1 - p->keep * p->keep) * p->jitter * normal();
    }
    double share = (double)(t - p->grid_at) / p->grid;
    return p->before + share * (p->after - p->before);
}

// --- the queue of what is on its way --------------------------------------------------------------------

static int sooner(const event *a, const event *b) { return a->at != b->at ? a->at < b->at : a->order < b->order; }

static void push(ns_t at, int arrived, packet *what) {
    if (heap_size == heap_room) {
        heap_room = heap_room ? 2 * heap_room : 4096;
        heap = realloc(heap, heap_room * sizeof *heap);
        if (!heap) abort();
    }
    event e = {at, orders++, arrived, what};
    size_t i = heap_size++;
    for (; i && sooner(&e, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = e;
}

static event pop(void) {
    event first = heap[0], last = heap[--heap_size];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < heap_size; i = child) {
        if (child + 1 < heap_size && sooner(&heap[child + 1], &heap[child])) child++;
        if (!sooner(&heap[child], &last)) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

// --- the model ------------------------------------------------------------------------------------------

static ns_t book(line *l, ns_t t, int bytes) {  // When these bytes are through, or -1 if the queue is full.
    if (l->ns_per_byte <= 0) return t;
    ns_t start = t > l->free_at ? t : l->free_at;
    if ((start - t) / l->ns_per_byte > l->queue_bytes) return -1;
    l->free_at = start + (ns_t)(bytes * l->ns_per_byte);
    return l->free_at;
}

static void depart(packet *p, ns_t t) {
    host *from = &hosts[p->from];
    path *way = &paths[p->from * host_count + p->to];
    ns_t out = book(&from->up, t, p->wire);
    if (out >= 0) out = book(&way->own, out, p->wire);
    if (out < 0 || in_flight > MOST_IN_FLIGHT) {
        from->queue_drops++;
        free(p);
        return;
    }
    ns_t at = out + way->latency + jitter_at(way, out);
    if (at < way->last) at = way->last;
    if (at < out) at = out;
    way->last = at;
    in_flight += p->wire;
    push(at, 0, p);
}

static void lose(int from, int wire, ns_t t) {  // What gets lost has passed the uplink all the same.
    book(&hosts[from].up, t, wire);
    hosts[from].lost++;
}

static int receiver_of(const uint8_t *ip, int bytes) {
    int place = -1;
    if (bytes >= 20 && ip[0] >> 4 == 4 && ip[16] == 10) place = (ip[18] << 8 | ip[19]) - 1;
    if (bytes >= 40 && ip[0] >> 4 == 6 && ip[24] == 0xfd) place = (ip[38] << 8 | ip[39]) - 1;
    return place >= 0 && place < host_count ? place : -1;
}

// --- TCP that the kernel has not segmented ---------------------------------------------------------------

static uint32_t sum16(uint32_t sum, const uint8_t *p, int n) {
    for (; n > 1; n -= 2, p += 2) sum += p[0] << 8 | p[1];
    return n ? sum + (p[0] << 8) : sum;
}

static uint16_t folded(uint32_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static void put16(uint8_t *p, uint16_t v) { p[0] = v >> 8, p[1] = v; }

typedef struct {
    const uint8_t *frame;
    int bytes, ip_at, tcp_at, payload_at, mss, payload, segments;
} super;

static int read_super(const uint8_t *frame, int bytes, super *s) {
    const struct virtio_net_hdr *v = (const void *)frame;
    int kind = v->gso_type & ~VIRTIO_NET_HDR_GSO_ECN;
    if (!vnet || (kind != VIRTIO_NET_HDR_GSO_TCPV4 && kind != VIRTIO_NET_HDR_GSO_TCPV6)) return 0;
    int ip_at = VNET_BYTES + header;
    if (bytes < ip_at + 60) return 0;
    int tcp_at = ip_at + (frame[ip_at] >> 4 == 6 ? 40 : (frame[ip_at] & 15) * 4);
    int payload_at = tcp_at + (frame[tcp_at + 12] >> 4) * 4, mss = v->gso_size;
    if (payload_at >= bytes || mss <= 0) return 0;
    *s = (super){frame, bytes, ip_at, tcp_at, payload_at, mss, bytes - payload_at, (bytes - payload_at + mss - 1) / mss};
    return 1;
}

static packet *cut_out(const super *s, int first, int count) {  // Segments [first, first + count) as a packet.
    int offset = first * s->mss, n = count * s->mss;
    if (offset + n > s->payload) n = s->payload - offset;
    packet *p = malloc(sizeof *p + s->payload_at + n);
    if (!p) abort();
    memcpy(p->data, s->frame, s->payload_at);
    memcpy(p->data + s->payload_at, s->frame + s->payload_at + offset, n);
    p->bytes = s->payload_at + n;
    uint8_t *ip = p->data + s->ip_at, *tcp = p->data + s->tcp_at;
    struct virtio_net_hdr *v = (void *)p->data;
    if (n <= s->mss) v->gso_type = VIRTIO_NET_HDR_GSO_NONE, v->gso_size = 0;
    uint32_t sequence;
    memcpy(&sequence, tcp + 4, 4);
    sequence = htonl(ntohl(sequence) + offset);
    memcpy(tcp + 4, &sequence, 4);
    if (offset + n < s->payload) tcp[13] &= ~0x09;  // FIN and PSH belong to the last,
    if (offset) tcp[13] &= ~0x80;                   // CWR to the first.
    int tcp_bytes = p->bytes - s->tcp_at;
    uint32_t pseudo;
    if (ip[0] >> 4 == 6) {
        put16(ip + 4, tcp_bytes);
        pseudo = sum16(0, ip + 8, 32);
    } else {
        put16(ip + 2, p->bytes - s->ip_at);
        put16(ip + 4, (ip[4] << 8 | ip[5]) + first);
        put16(ip + 10, 0);
        put16(ip + 10, ~folded(sum16(0, ip, s->tcp_at - s->ip_at)));
        pseudo = sum16(0, ip + 12, 8);
    }
    put16(tcp + 16, folded(pseudo + 6 + tcp_bytes));  // The kernel adds the rest of the checksum.
    p->wire = n + count * (s->payload_at - s->ip_at + FRAME_BYTES);
    return p;
}

static double narrowest(int from, int to) {
    double a = hosts[from].up.ns_per_byte, b = hosts[to].down.ns_per_byte;
    double c = paths[from * host_count + to].own.ns_per_byte;
    return fmax(a, fmax(b, c));
}

static void depart_super(const super *s, int from, int to, ns_t t) {
    double slowest = narrowest(from, to), loss = paths[from * host_count + to].loss;
    int most = 64, first = 0;
    if (slowest > 0) most = fmax(1, LINE_TIME / slowest / s->mss);
    for (int i = 0; i <= s->segments; i++) {
        int lost = i < s->segments && loss > 0 && chance() < loss;
        if (i < s->segments && !lost && i - first < most) continue;
        if (i > first) {
            packet *p = cut_out(s, first, i - first);
            p->from = from, p->to = to;
            depart(p, t);
        }
        if (lost) lose(from, s->mss + s->payload_at - s->ip_at + FRAME_BYTES, t);
        first = lost ? i + 1 : i;
    }
}

// --- in and out -----------------------------------------------------------------------------------------

static void take(int from, const uint8_t *frame, int bytes, ns_t t) {
    int ip_at = (vnet ? VNET_BYTES : 0) + header, to = receiver_of(frame + ip_at, bytes - ip_at);
    if (to < 0) return;
    path *way = &paths[from * host_count + to];
    hosts[from].sent++, hosts[from].sent_bytes += bytes - ip_at;
    if (!way->open) {
        hosts[from].closed++;
        return;
    }
    super s;
    if (read_super(frame, bytes, &s)) {
        depart_super(&s, from, to, t);
        return;
    }
    int wire = bytes - ip_at + FRAME_BYTES;
    if (way->loss > 0 && chance() < way->loss) {
        lose(from, wire, t);
        return;
    }
    packet *p = malloc(sizeof *p + bytes);
    if (!p) abort();
    memcpy(p->data, frame, bytes);
    p->bytes = bytes, p->wire = wire, p->from = from, p->to = to;
    depart(p, t);
}

static void count_lateness(ns_t late) {
    int bucket = 0;
    for (double bound = 10000; bucket < LATE_BUCKETS - 1 && late > bound; bound *= 1.25) bucket++;
    late_counts[bucket]++;
}

static void deliver(packet *p, ns_t due) {
    host *to = &hosts[p->to];
    if (!paths[p->from * host_count + p->to].open)
        to->closed++;
    else if (write(to->fd, p->data, p->bytes) < 0)
        to->failed++;
    else
        to->received++, to->received_bytes += p->bytes - header - (vnet ? VNET_BYTES : 0);
    count_lateness(now() - due);
    free(p);
}

static void run_due(ns_t t) {
    for (int k = 0; heap_size && heap[0].at <= t && k < DELIVERIES; k++) {
        event e = pop();
        if (!e.arrived) {
            ns_t through = book(&hosts[e.what->to].down, e.at, e.what->wire);
            if (through < 0) {
                hosts[e.what->to].queue_drops++;
                in_flight -= e.what->wire;
                free(e.what);
                continue;
            }
            if (through > t) {
                push(through, 1, e.what);
                continue;
            }
            e.at = through;
        }
        in_flight -= e.what->wire;
        deliver(e.what, e.at);
    }
}

// --- commands -------------------------------------------------------------------------------------------

static void set_line(line *l, double bytes_s, double queue_bytes) {
    l->ns_per_byte = bytes_s > 0 ? SECOND / bytes_s : 0;
    l->queue_bytes = queue_bytes;
}

static int stats(char *out, int room) {
    int n = snprintf(out, room, "{\"in_flight\":%llu,\"late\":[", (unsigned long long)in_flight);
    for (int i = 0; i < LATE_BUCKETS; i++) n += snprintf(out + n, room - n, "%s%llu", i ? "," : "", (unsigned long long)late_counts[i]);
    n += snprintf(out + n, room - n, "],\"hosts\":[");
    for (int i = 0; i < host_count; i++) {
        host *h = &hosts[i];
        uint64_t values[] = {h->sent, h->sent_bytes, h->received, h->received_bytes, h->lost, h->queue_drops, h->closed, h->failed};
        for (int k = 0; k < 8; k++) n += snprintf(out + n, room - n, "%s%llu", k ? "," : i ? ",[" : "[", (unsigned long long)values[k]);
        n += snprintf(out + n, room - n, "]");
    }
    return n + snprintf(out + n, room - n, "]}");
}

static int obey(const char *text, char *out, int room) {
    int a, b, on;
    double v[6];
    if (sscanf(text, "host %d %lf %lf %lf %lf", &a, v, v + 1, v + 2, v + 3) == 5 && a >= 0 && a < host_count) {
        set_line(&hosts[a].up, v[0], v[2]);
        set_line(&hosts[a].down, v[1], v[3]);
        return snprintf(out, room, "ok");
    }
    if (sscanf(text, "pair %d %d %d %lf %lf %lf %lf %lf %lf", &a, &b, &on, v, v + 1, v + 2, v + 3, v + 4, v + 5) == 9 &&
        a >= 0 && a < host_count && b >= 0 && b < host_count) {
        path *p = &paths[a * host_count + b];
        p->open = on, p->latency = v[0] * SECOND, p->loss = v[3];
        if (v[1] * SECOND != p->jitter) p->grid_at = -1000 * SECOND;
        p->jitter = v[1] * SECOND, p->grid = fmax(1000000, v[2] * SECOND / 8), p->keep = exp(-1.0 / 8);
        set_line(&p->own, v[4], v[5]);
        return snprintf(out, room, "ok");
    }
    if (!strncmp(text, "mark", 4)) {
        memset(late_counts, 0, sizeof late_counts);
        return snprintf(out, room, "ok");
    }
    if (!strncmp(text, "stats", 5)) return stats(out, room);
    return snprintf(out, room, "unknown command");
}

static void obey_all(int control) {
    static char text[512], out[262144];
    for (;;) {
        ssize_t n = recv(control, text, sizeof text - 1, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) exit(0);  // The lab is gone.
        text[n] = 0;
        if (send(control, out, obey(text, out, sizeof out), 0) < 0) exit(0);
    }
}

static void hurry(void) {  // To be on time among busy programs: real time if allowed, else short slices.
    struct sched_param real_time = {.sched_priority = 10};
    struct { uint32_t size, policy; uint64_t flags; int32_t nice; uint32_t priority; uint64_t runtime, deadline, period; }
        slices = {.size = 48, .runtime = 100000};
    prctl(PR_SET_TIMERSLACK, 1);
    mlockall(MCL_CURRENT);
    if (sched_setscheduler(0, SCHED_FIFO, &real_time)) syscall(SYS_sched_setattr, 0, &slices, 0);
}

int main(int argc, char **argv) {
    if (argc < 6) return 2;
    int control = atoi(argv[1]);
    header = atoi(argv[2]), vnet = atoi(argv[3]), host_count = argc - 5;
    random_state[0] = 0x9E3779B97F4A7C15ull ^ strtoull(argv[4], 0, 10), random_state[1] = 0xD1B54A32D192ED03ull;
    for (int i = 0; i < 16; i++) chance();
    hosts = calloc(host_count, sizeof *hosts);
    paths = calloc((size_t)host_count * host_count, sizeof *paths);
    struct pollfd *fds = calloc(host_count + 1, sizeof *fds);
    if (!hosts || !paths || !fds) return 1;
    for (int i = 0; i < host_count; i++) hosts[i].fd = atoi(argv[5 + i]), fds[i] = (struct pollfd){hosts[i].fd, POLLIN, 0};
    fds[host_count] = (struct pollfd){control, POLLIN, 0};
    hurry();
    send(control, "ready", 5, 0);
    static uint8_t frame[LARGEST];
    for (;;) {
        struct timespec left, *wait = NULL;
        if (heap_size) {
            ns_t ns = heap[0].at - now();
            if (ns < 0) ns = 0;
            left = (struct timespec){ns / SECOND, ns % SECOND};
            wait = &left;
        }
        if (ppoll(fds, host_count + 1, wait, NULL) < 0 && errno != EINTR) return 1;
        for (int i = 0; i < host_count; i++) {
            if (!fds[i].revents) continue;
            for (int k = 0; k < BURST; k++) {
                ssize_t n = read(hosts[i].fd, frame, sizeof frame);
                if (n <= 0) break;
                take(i, frame, n, now());
            }
        }
        if (fds[host_count].revents) obey_all(control);
        run_due(now());
    }
}
