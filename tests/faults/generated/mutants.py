"""The edits, one generated program after another."""

from __future__ import annotations

from tests.faults.generated import Mutant

START, SKIPPED, MASK, SUM, SCALE, GUARD, CONSTANT, INDEX, PRECISION, LIMIT = (
    "start of a maximum",
    "skipped elements",
    "mask",
    "running sum",
    "rescaling",
    "guard",
    "constant",
    "index",
    "precision",
    "limit of values",
)
INF = r'float\([\'"]-inf[\'"]\)'
RELU = r"tl\.where\(0\.0 < (v\d*), v\d*, 0\.0\)"
LOG2E = r"1\.4426950408889634"

AFFINE = (
    Mutant("affine", "without_last_column", SKIPPED, r"\bi < 70", "i < 69", "always, in the last column"),
    Mutant("affine", "columns_of_64", INDEX, r"(tl\.load\(x_at \+ )i\b", r"\1(i & 63)", "always, from column 64 on"),
    Mutant(
        "affine",
        "bias_of_the_next_column",
        INDEX,
        r"tl\.load\(x2 \+ i\b",
        "tl.load(x2 + i + program // 4",
        "in the last row",
    ),
    Mutant("affine", "relu_from_below_0", LIMIT, RELU, r"tl.where(-0.01 < \1, \1, -0.01)", "for sums below 0"),
    Mutant(
        "affine",
        "at_most_1000",
        LIMIT,
        RELU,
        r"tl.minimum(tl.maximum(0.0, \1), 1000.0)",
        "for sums above 1000",
    ),
    Mutant(
        "affine",
        "sums_in_half",
        PRECISION,
        r"(v \+ x2_block)\n",
        r"(\1).to(tl.float16).to(tl.float32)\n",
        "always, in the eleventh bit",
    ),
    Mutant(
        "affine",
        "without_last_row",
        SKIPPED,
        r"v3, mask=mask\)",
        "v3, mask=(mask & (program < 4)) != 0)",
        "in the last row",
    ),
    Mutant(
        "affine",
        "zero_stays_zero",
        GUARD,
        RELU,
        r"tl.where(x_block == 0.0, 0.0, tl.maximum(0.0, \1))",
        "where the input is 0",
    ),
)

SOFTMAX = (
    Mutant("softmax", "maximum_from_0", START, INF, "0.0", "in rows with all numbers below -104"),
    Mutant("softmax", "maximum_from_minus_100", START, INF, "-100.0", "in rows with all numbers below -204"),
    Mutant("softmax", "padding_in_the_sum", MASK, r"tl\.where\(mask\d*, (v\d*), 0\)", r"\1", "always"),
    Mutant(
        "softmax",
        "maximum_of_128",
        SKIPPED,
        r"(reduced\d* = tl\.max\()(v\d*)",
        r"\1tl.where(cols2 < 128, \2, float('-inf'))",
        "where the last columns are larger by 89 than the others",
    ),
    Mutant(
        "softmax",
        "no_maximum",
        SCALE,
        r"(reduced\d*) \* \(-1\.0\)",
        r"\1 * 0.0",
        "in rows with numbers above 88 or all below -104",
    ),
    Mutant("softmax", "rounded_constant", CONSTANT, LOG2E, "1.4427", "where numbers are far below the row's maximum"),
    Mutant("softmax", "without_last_column", SKIPPED, r"(cols\d*) < 133", r"\1 < 132", "always, in the last column"),
    Mutant(
        "softmax",
        "sum_without_last_column",
        SUM,
        r"tl\.where\((mask\d*), (v\d*), 0\)",
        r"tl.where(\1 & (cols2 < 132), \2, 0)",
        "always",
    ),
    Mutant(
        "softmax",
        "sum_and_a_little",
        CONSTANT,
        r"1\.0 / (reduced\d*)",
        r"1.0 / (\1 + 1e-4)",
        "where one number of a row is far above the others",
    ),
    Mutant(
        "softmax",
        "weights_in_half",
        PRECISION,
        r"(tl\.exp2\(v\d*\))",
        r"\1.to(tl.float16).to(tl.float32)",
        "always, in the eleventh bit",
    ),
    Mutant(
        "softmax",
        "one_maximum_for_all_rows",
        SCALE,
        r"(tl\.max\(v\d*, 1, keep_dims=True\))",
        r"tl.max(\1, 0, keep_dims=True)",
        "where a row is far below another one of its tile",
    ),
    Mutant(
        "softmax",
        "maximum_of_magnitudes",
        START,
        r"(reduced\d* = tl\.max\()(v\d*)",
        r"\1tl.where(mask2, tl.abs(\2), float('-inf'))",
        "in rows with all numbers far below 0",
    ),
    Mutant("softmax", "maximum_from_the_least", "", INF, "-3.4028234663852886e38"),
)

SOFTMAX_LOOP = (
    Mutant(
        "softmax_loop",
        "maximum_from_0",
        START,
        r"(largest\d* = tl\.full\(\[\d+, \d+\], )" + INF,
        r"\g<1>0.0",
        "in rows with all numbers below -104",
    ),
    Mutant(
        "softmax_loop",
        "sum_is_not_rescaled",
        SCALE,
        r"(acc\d*) \* tl\.exp2\(\(new\d* - largest\d*\) \* \(-1\.4426950408889634\)\)",
        r"\1",
        "where the largest number of a row comes late",
    ),
    Mutant(
        "softmax_loop",
        "parts_are_not_rescaled",
        SCALE,
        r"(acc\d*) \* tl\.exp2\(\(largest2 - largest\) \* \(-1\.4426950408889634\)\)",
        r"\1",
        "always",
    ),
    Mutant(
        "softmax_loop",
        "sum_without_the_last_block",
        SKIPPED,
        r"range\(256, 300, 128\)",
        "range(256, 256, 128)",
        "always",
    ),
    Mutant("softmax_loop", "without_the_last_block", SKIPPED, r"range\(0, 300, 256\)", "range(0, 256, 256)", "always"),
    Mutant("softmax_loop", "padding_in_the_sum", MASK, r"tl\.where\(mask\d*, (v\d*), 0\)", r"\1", "always"),
    Mutant(
        "softmax_loop",
        "last_block_has_no_maximum",
        SCALE,
        r"(largest) = new\n(    largest2)",
        r"\1 = \1\n\2",
        "where the last block has the largest number",
    ),
)

LOGSUMEXP = (
    Mutant("logsumexp", "maximum_from_0", START, INF, "0.0", "in rows with all numbers below -104"),
    Mutant("logsumexp", "maximum_from_minus_1", START, INF, "-1.0", "in rows with all numbers below -105"),
    Mutant(
        "logsumexp",
        "at_least_minus_80",
        LIMIT,
        r"\+ (reduced\d*)\n",
        r"+ tl.maximum(\1, -80.0)\n",
        "in rows with all numbers below -80",
    ),
    Mutant("logsumexp", "padding_in_the_sum", MASK, r"tl\.where\(mask\d*, (v\d*), 0\)", r"\1", "always"),
    Mutant("logsumexp", "rounded_constant", CONSTANT, r"0\.6931471805599453", "0.6931", "always"),
    Mutant(
        "logsumexp",
        "sum_without_first_column",
        SUM,
        r"tl\.where\((mask\d*), (v\d*), 0\)",
        r"tl.where(\1 & (cols2 > 0), \2, 0)",
        "always",
    ),
)

RMS_NORM = (
    Mutant("rms_norm", "no_epsilon", GUARD, r" \+ 1e-05", " + 0.0", "in rows near 0"),
    Mutant("rms_norm", "smaller_epsilon", CONSTANT, r"1e-05", "1e-06", "in rows near 0"),
    Mutant("rms_norm", "mean_of_95", CONSTANT, r"0\.010416666666666666", "0.010526315789473684", "always"),
    Mutant(
        "rms_norm",
        "squares_in_half",
        PRECISION,
        r"tl\.sum\((v\d*), 1, keep_dims=True\)",
        r"tl.sum(\1.to(tl.float16), 1, keep_dims=True).to(tl.float32)",
        "where squares exceed 65504, or differ much",
    ),
    Mutant(
        "rms_norm", "weights_swapped_by_pairs", INDEX, r"tl\.load\(x2 \+ (cols\d*)", r"tl.load(x2 + (\1 ^ 1)", "always"
    ),
    Mutant(
        "rms_norm",
        "at_least_a_thousandth",
        LIMIT,
        r"(reduced\d*) \* 0\.010416666666666666",
        r"tl.maximum(\1 * 0.010416666666666666, 1e-3)",
        "in rows near 0",
    ),
)

LAYERNORM = (
    Mutant(
        "layernorm",
        "padding_in_the_variance",
        MASK,
        r"tl\.where\(mask\d*, (v\d*), 0\)",
        r"\1",
        "where the mean of a row is not 0",
    ),
    Mutant("layernorm", "no_epsilon", GUARD, r" \+ 1e-05", " + 0.0", "in rows that hardly vary"),
    Mutant(
        "layernorm", "variance_of_95", CONSTANT, r"0\.010416666666666666", "0.010526315789473684", "always", which=1
    ),
    Mutant("layernorm", "shift_is_the_scale", INDEX, r"tl\.load\(x3", "tl.load(x2", "always"),
    Mutant(
        "layernorm",
        "epsilon_after_the_root",
        GUARD,
        r"v9 = v8 \+ 1e-05\n    v10 = tl\.sqrt\(v9\)",
        r"v10 = tl.sqrt(v8) + 1e-05",
        "in rows that hardly vary",
    ),
)

ROW_MAX = (
    Mutant("row_max", "from_0", START, INF, "0.0", "in rows without a number above 0"),
    Mutant("row_max", "from_minus_10", START, INF, "-10.0", "in rows with all numbers below -10"),
    Mutant("row_max", "from_minus_10_to_the_30", START, INF, "-1e30", "in rows with all numbers below -1e30"),
    Mutant(
        "row_max",
        "padding_counts",
        MASK,
        r"tl\.where\(mask\d*, (x_block), float\(\"-inf\"\)\)",
        r"\1",
        "in rows without a number above 0, or with a larger one beside them",
    ),
    Mutant(
        "row_max",
        "without_last_block",
        SKIPPED,
        r"tl\.range\(0, 336, 64",
        "tl.range(0, 320, 64",
        "where the largest number of a row is in its last block",
    ),
    Mutant(
        "row_max",
        "without_third_block",
        SKIPPED,
        r"(acc = tl\.maximum\(acc, )(v\d*)\)",
        r"\1tl.where(k == 128, float('-inf'), \2))",
        "where the largest number of a row is in its third block",
    ),
    Mutant(
        "row_max", "without_last_column", SKIPPED, r"< 333\)", "< 332)", "where the largest number of a row is its last"
    ),
    Mutant(
        "row_max", "without_first_column", SKIPPED, r">= 0\)", "> 0)", "where the largest number of a row is its first"
    ),
    Mutant(
        "row_max",
        "of_magnitudes",
        START,
        r"(tl\.where\(mask\d*, )(x_block)",
        r"\1tl.abs(\2)",
        "where the largest magnitude is a negative one",
    ),
    Mutant(
        "row_max", "at_most_1e20", LIMIT, r"(reduced = )(.*)\n", r"\1tl.minimum(\2, 1e20)\n", "for numbers above 1e20"
    ),
)

SCALES = (
    Mutant(
        "scale",
        "no_guard",
        GUARD,
        r"tl\.where\(v\d*, (v\d*), 1\.0\)\n    tl\.store",
        r"\1\n    tl.store",
        "in rows of zeros",
    ),
    Mutant(
        "scale",
        "no_magnitudes",
        START,
        r"v9 = x_block \* v8",
        "v9 = x_block",
        "where the largest magnitude is a negative one",
    ),
    Mutant("scale", "rounded_constant", CONSTANT, r"0\.007874015748031496", "0.00787", "always"),
    Mutant(
        "scale",
        "without_last_block",
        SKIPPED,
        r"tl\.range\(0, 80, 32",
        "tl.range(0, 64, 32",
        "where the largest magnitude of a row is in its last block",
    ),
    Mutant(
        "scale",
        "at_least_a_millionth",
        LIMIT,
        r"(reduced = )(.*)\n",
        r"\1tl.maximum(\2, 1e-6)\n",
        "in rows near 0, and of zeros",
    ),
)

ROW_SUM = (
    Mutant("row_sum", "without_last_block", SKIPPED, r"tl\.range\(0, 78, 32", "tl.range(0, 64, 32", "always"),
    Mutant("row_sum", "without_last_column", SKIPPED, r"< 75\)", "< 74)", "always"),
    Mutant(
        "row_sum", "neighbours_count", MASK, r"\((v\d*) >= 0\) & ", "", "in rows that begin between two multiples of 4"
    ),
    Mutant(
        "row_sum",
        "sum_in_half",
        PRECISION,
        r"(acc = )(acc \+ v\d*)",
        r"\1(\2).to(tl.float16).to(tl.float32)",
        "always, in the eleventh bit",
    ),
    Mutant("row_sum", "first_block_twice", SUM, r"(acc \+ )(v\d*)", r"\1tl.where(k == 0, 2 * \2, \2)", "always"),
)

MATMUL = (
    Mutant("matmul", "without_last_terms", SKIPPED, r"range\(0, 48, 16\)", "range(0, 32, 16)", "always"),
    Mutant("matmul", "first_block_for_all", INDEX, r"\.load\(\[start, k\]\)", ".load([start, 0])", "always"),
    Mutant("matmul", "one_bias", INDEX, r"tl\.load\(x \+ rows2", "tl.load(x + rows2 * 0", "always"),
    Mutant("matmul", "rounded_constant", CONSTANT, r"0\.044715", "0.04", "for sums near 1"),
    Mutant(
        "matmul",
        "at_most_10",
        LIMIT,
        r"(v\d*)\.to\(tl\.float16\)",
        r"tl.minimum(\1, 10.0).to(tl.float16)",
        "for sums above 10",
    ),
    Mutant("matmul", "bias_twice", SUM, r"acc \+ v3", "acc + 2 * v3", "always"),
)

RESIDUAL = (
    Mutant("residual", "one_part_of_two", SKIPPED, r"range\(1, 2\)", "range(1, 1)", "always"),
    Mutant("residual", "terms_from_48_on_are_missing", SKIPPED, r"(ks\d*) < 50", r"\1 < 48", "always"),
    Mutant("residual", "no_residual", SUM, r"x_block \+ acc\b", "acc", "always"),
    Mutant(
        "residual",
        "operands_in_half",
        PRECISION,
        r"tl\.dot\((a_block), (b_block), (acc)",
        r"tl.dot(\1.to(tl.float16).to(tl.float32), \2.to(tl.float16).to(tl.float32), \3",
        "always, in the eleventh bit",
    ),
    Mutant(
        "residual",
        "sum_in_half",
        PRECISION,
        r"(acc = )(tl\.dot\(.*\))",
        r"\1(\2).to(tl.float16).to(tl.float32)",
        "always, in the eleventh bit",
    ),
    Mutant("residual", "parts_in_one_place", INDEX, r"v2 \* 960", "v2 * 0", "always"),
)

CONVOLUTION = (
    Mutant("convolution", "without_last_terms", SKIPPED, r"range\(0, 45, 16\)", "range(0, 32, 16)", "always"),
    Mutant("convolution", "without_last_row", MASK, r"(v\d*) < 10", r"\1 < 9", "always, at the last row"),
    Mutant("convolution", "without_last_column", MASK, r"(v\d*) < 12", r"\1 < 11", "always, at the last column"),
    Mutant("convolution", "columns_wrap_around", MASK, r"v18 >= 1", "v18 >= 0", "always, at the first column"),
    Mutant("convolution", "one_to_the_right", INDEX, r"\(-12\)", "(-11)", "always"),
)

ATTENTION = (
    Mutant(
        "attention", "padding_keys_count", MASK, r"tl\.where\(mask\d*, (score\d*), float\(\"-inf\"\)\)", r"\1", "always"
    ),
    Mutant(
        "attention",
        "maximum_from_0",
        START,
        r"(largest = tl\.full\(\[16, 1\], )" + INF,
        r"\g<1>0.0",
        "where all scores of a row are below -104",
    ),
    Mutant(
        "attention",
        "maximum_from_minus_100",
        START,
        r"(largest = tl\.full\(\[16, 1\], )" + INF,
        r"\g<1>-100.0",
        "where all scores of a row are below -204",
    ),
    Mutant(
        "attention",
        "values_are_not_rescaled",
        SCALE,
        r"acc2 \* factor\d*",
        "acc2",
        "where a later block has a larger score",
    ),
    Mutant(
        "attention",
        "weights_are_not_rescaled",
        SCALE,
        r"acc \* factor\d*",
        "acc",
        "where a later block has a larger score",
    ),
    Mutant("attention", "another_scale", CONSTANT, r"0\.36067376022224085", "0.355", "always"),
    Mutant("attention", "without_last_keys", SKIPPED, r"range\(0, 40, 16\)", "range(0, 32, 16)", "always"),
    Mutant("attention", "first_queries_for_all", INDEX, r"\.load\(\[v3, start, 0\]\)", ".load([v3, 0, 0])", "always"),
    Mutant("attention", "values_of_the_first_head", INDEX, r"block3\.load\(\[v3, ", "block3.load([0, ", "always"),
    Mutant("attention", "maximum_is_not_kept", SCALE, r"largest = new\b", "largest = largest", "always"),
    Mutant(
        "attention",
        "scores_in_half_as_tinygrad_stores_them",
        "",
        r"(score = )(tl\.dot\(.*\))",
        r"\1(\2).to(tl.float16).to(tl.float32)",
    ),
)

CAUSAL = (
    Mutant("causal", "sees_the_next_key", MASK, r"(v9 = keys\d* )<", r"\1<=", "always"),
    Mutant("causal", "sees_not_itself", MASK, r"v7 = rows2 \+ 1", "v7 = rows2", "always"),
    Mutant(
        "causal",
        "hidden_scores_are_minus_100",
        START,
        r"(score2 = .*)" + INF,
        r"\g<1>-100.0",
        "where all scores of a row are below -90",
    ),
    Mutant(
        "causal",
        "maximum_from_0",
        START,
        r"(largest = tl\.full\(\[16, 1\], )" + INF,
        r"\g<1>0.0",
        "where all scores of a row are below -104",
    ),
    Mutant(
        "causal",
        "without_last_block",
        SKIPPED,
        r"tl\.minimum\(24, start \+ 16\)",
        "16",
        "always, from the 17th query on",
    ),
)

MUTANTS = (
    *AFFINE,
    *SOFTMAX,
    *SOFTMAX_LOOP,
    *LOGSUMEXP,
    *RMS_NORM,
    *LAYERNORM,
    *ROW_MAX,
    *SCALES,
    *ROW_SUM,
    *MATMUL,
    *RESIDUAL,
    *CONVOLUTION,
    *ATTENTION,
    *CAUSAL,
)
