// C++ with -O2 and no frame pointers: exceptions thrown and caught around, destructors while one is
// under way, virtual calls, lambdas, static objects, threads.
#include "frames.h"
#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

struct Guard {
    std::string name;
    NEVER ~Guard() {
        take(name.c_str());
        STAY;
    }
};

NEVER static int thrower(int depth) {
    Guard guard{"destructor"};
    if (depth == 0) throw std::runtime_error("thrown");
    int result = thrower(depth - 1);
    STAY;
    return result + 1;
}

NEVER static void catcher() {
    take("before");
    try {
        thrower(3);
    } catch (const std::exception &) {
        take("catch");
        try {
            Guard guard{"rethrown"};
            throw;
        } catch (const std::runtime_error &) {
            take("catch again");
        }
    }
    take("after");
    STAY;
}

struct Base {
    virtual ~Base() = default;
    virtual void call() = 0;
};

struct Derived : Base {
    std::vector<long> numbers{1, 2, 3};
    NEVER void call() override {
        std::sort(numbers.begin(), numbers.end(), [](long a, long b) {
            take("sort");
            return a > b;
        });
        take("virtual");
        STAY;
    }
};

template <typename T> NEVER static T twice(T value, const std::function<void(T)> &what) {
    what(value);
    STAY;
    return value + value;
}

NEVER static void all() {
    catcher();
    std::unique_ptr<Base> thing = std::make_unique<Derived>();
    thing->call();
    twice<double>(1.5, [](double) { take("function"); });
    twice<std::string>("x", [](const std::string &) { catcher(); });
    STAY;
}

struct Static {
    Static() {
        frames_begin();
        take("constructor of a static");
        STAY;
    }
    ~Static() {
        take("destructor of a static");
        STAY;
    }
} object;

int main() {
    all();
    std::vector<std::thread> threads;
    for (int k = 0; k < 3; k++) threads.emplace_back(all);
    for (auto &thread : threads) thread.join();
    STAY;
    return 0;
}
