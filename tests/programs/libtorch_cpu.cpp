/* Stands in for PyTorch's libtorch_cpu.so: the nodes of its autograd graph, laid out as in PyTorch 2.11, and the
   functions that number and run them. The names of classes and functions are PyTorch's.
   OTHER_LAYOUT: a field stands before the others. OTHER_POINTERS: nodes are not held by std::shared_ptr. */
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

extern "C" void cache_block(int device, void *at, int64_t size);

namespace at {
class Tensor {};
namespace sequence_number {
static thread_local uint64_t next_number = 0;
__attribute__((noinline)) uint64_t get_and_increment() { return next_number++; }
} // namespace sequence_number
struct RecordFunction {
    static uint64_t currentThreadId();
};
__attribute__((noinline)) uint64_t RecordFunction::currentThreadId() {
    static std::atomic<uint64_t> last{0};
    static thread_local uint64_t own = 0;
    if (own == 0) own = ++last;
    return own;
}
} // namespace at

namespace torch {
namespace autograd {
struct Node;
struct Edge {
    std::shared_ptr<Node> function;
    uint32_t input_nr = 0;
};

struct Node : std::enable_shared_from_this<Node> {
    explicit Node(uint64_t number, std::vector<Edge> &&edges) : sequence_nr_(number), next_edges_(std::move(edges)) {
        for (const Edge &edge : next_edges_)
            if (edge.function) {
                edge.function->has_parent_ = true;
                topological_nr_ = std::max(topological_nr_, edge.function->topological_nr_ + 1);
            }
        thread_id_ = at::RecordFunction::currentThreadId();
    }
    explicit Node(std::vector<Edge> &&edges) : Node(at::sequence_number::get_and_increment(), std::move(edges)) {}
    virtual ~Node() = default;
    virtual void apply(void *at, int64_t size) { cache_block(0, at, size); }

#ifdef OTHER_LAYOUT
    uint64_t another_ = 7;
#endif
    uint64_t sequence_nr_;
    uint64_t topological_nr_ = 0;
    mutable bool has_parent_ = false;
    uint64_t thread_id_ = 0;
    std::mutex mutex_;
    std::vector<Edge> next_edges_;
};

struct GraphTask {};
struct ReadyQueue {};
struct InputBuffer {
    void *at = nullptr;
    int64_t size = 0;
    /* The memory is requested outside of the node. */
    bool after = false;
};

static thread_local std::shared_ptr<Node> current;
__attribute__((noinline)) std::shared_ptr<Node> get_current_node() { return current; }

namespace impl {
#ifndef OTHER_POINTERS
__attribute__((noinline)) void set_grad_accumulator(const at::Tensor &, std::weak_ptr<Node>) {}
#endif
} // namespace impl

static thread_local InputBuffer waiting;
static thread_local std::shared_ptr<Node> to_run;

struct Engine {
    void evaluate_function(std::shared_ptr<GraphTask> &, Node *, InputBuffer &, const std::shared_ptr<ReadyQueue> &);
    virtual void thread_main(const std::shared_ptr<GraphTask> &);
};
__attribute__((noinline)) void Engine::evaluate_function(std::shared_ptr<GraphTask> &, Node *node, InputBuffer &inputs,
                                                         const std::shared_ptr<ReadyQueue> &) {
    if (!inputs.after) node->apply(inputs.at, inputs.size);
    asm volatile("");
}
__attribute__((noinline)) void Engine::thread_main(const std::shared_ptr<GraphTask> &task) {
    std::shared_ptr<GraphTask> own = task;
    current = to_run;
    evaluate_function(own, to_run.get(), waiting, nullptr);
    if (waiting.after) cache_block(0, waiting.at, waiting.size);
    current = nullptr;
}
} // namespace autograd
} // namespace torch

using namespace torch::autograd;
static std::vector<std::shared_ptr<Node>> nodes;

static std::vector<Edge> edges_to(int next) {
    std::vector<Edge> edges(2);
    edges[1].function = next < 0 ? nullptr : nodes[next];
    return edges;
}

static int keep(std::shared_ptr<Node> node) {
    nodes.push_back(std::move(node));
    return (int)nodes.size() - 1;
}

/* A node that makes another one when it runs, as with create_graph=True. */
struct MakesNode : Node {
    using Node::Node;
    int made = -1;
    void apply(void *, int64_t) override { made = keep(std::make_shared<Node>(edges_to(0))); }
};

extern "C" {
/* The node of a leaf's gradient has no number of its own. */
int leaf_node(void) { return keep(std::make_shared<Node>(UINT64_MAX, std::vector<Edge>())); }
int forward_node(int next) { return keep(std::make_shared<Node>(edges_to(next))); }
int node_that_makes_another(int next) { return keep(std::make_shared<MakesNode>(edges_to(next))); }
/* So many nodes, one after another, without edges. */
void make_nodes(long count) {
    for (long n = 0; n < count; n++) Node node{std::vector<Edge>()};
}
/* A number that no node got. */
void renumber(int node) { nodes[node]->sequence_nr_ = 1ull << 40; }

/* Runs a node on a thread of the engine. It requests one block, or, `after` it, the engine does. Returns the node
   that it made; -1: none. */
int backward(int node, void *at, int64_t size, int after) {
    std::thread([=] {
        to_run = nodes[node];
        waiting = InputBuffer{at, size, after != 0};
        Engine().thread_main(std::make_shared<GraphTask>());
        to_run = nullptr;
    }).join();
    auto *makes = dynamic_cast<MakesNode *>(nodes[node].get());
    return makes ? makes->made : -1;
}

/* On a thread of the program: no node runs. */
void block_outside(void *at, int64_t size) {
    std::thread([=] { cache_block(0, at, size); }).join();
}
int owners(int node) { return (int)nodes[node].use_count(); }
}
