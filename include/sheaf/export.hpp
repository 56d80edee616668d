// SPDX-License-Identifier: MIT
// What the shared library shows; everything else stays hidden.
#pragma once

#define SHEAF_API __attribute__((visibility("default")))
