// Rowwise casts of gathered rows (cast_gathered.cuh): each is read once, by cast_rows or cast_rows_wide.
#pragma once

#include "cast/cast_gathered.cuh"
#include "cast/cast_rows.cuh"
#include "cast/cast_rows_wide.cuh"
