// The block copy op done by the host's processor: the reference that kernels must equal. Pure
// function over the caller's memory.
#pragma once

#include "device/block_copy.h"
#include "device/fragment_table.h"

namespace kvtier {

/// Requires: check_block_copy() is ok. `op.table_id` is not looked at.
void run_block_copy(const FragmentTable& table, const BlockCopy& op);

}  // namespace kvtier
