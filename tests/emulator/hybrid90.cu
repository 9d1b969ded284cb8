// The whole Hopper kernel, on an emulated machine with Hopper's shared memory.
int pod_chosen = -1;  // as in emulate/driver.cu
#include "sm90/hybrid.cu"
#include "host.h"

EXPORT void choose(int change) { pod_chosen = change; }

EXPORT const char* run(const HybridArgs* launch, int sms) {
    return outcome([=] {
        emulate::machine().sms = sms;
        emulate::machine().smem_per_sm = 228 << 10, emulate::machine().smem_per_cta = 227 << 10;
        launch_hopper(*launch, 0);
    });
}
