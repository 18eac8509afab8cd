/* Mathematics that a C library lacks, has too slowly, or has in a form that compilers cannot vectorise.

   One helper per blank-line-separated block; a kernel receives only those it uses (see prelude.py). The float32 functions have no
   branch, no call and no table, so a loop over them vectorises on any processor. Their polynomials are minimax fits (Remez exchange),
   measured by benchmarks/ulps.py. The float64 ones take formulae from the NIST Digital Library of Mathematical Functions (DLMF). */

TC_INLINE uint32_t tc_bits_f32(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

TC_INLINE float tc_from_bits_f32(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}

/* n + 1.5 * 2^23 + 127 with x / ln 2 = n to the nearest integer, for |x| < 2^20: there is no room for a fraction */
TC_INLINE float tc_exponent_of_exp_f32(float x) {
  return x * 0x1.715476p+0f + 0x1.8000fep+23f;
}

/* n and 2^n, for -126 <= n <= 127, of this */
TC_INLINE float tc_exponent_f32(float sum) {
  return sum - 0x1.8000fep+23f;
}

TC_INLINE float tc_power_of_two_f32(float sum) {
  return tc_from_bits_f32(tc_bits_f32(sum) << 23);
}

/* x - n ln 2 in two parts, the first with room to multiply exactly */
TC_INLINE float tc_exp_rest_f32(float x, float n) {
  return (x - n * 0x1.62ep-1f) - n * 0x1.0bfbe8p-15f;
}

/* e^r - 1 where x = n ln 2 + r and |r| <= ln 2 / 2 */
TC_INLINE float tc_expm1_rest_f32(float x, float n) {
  float r = tc_exp_rest_f32(x, n);
  float p = 0x1.a032cp-13f;
  p = p * r + 0x1.6d71f8p-10f;
  p = p * r + 0x1.11118ap-7f;
  p = p * r + 0x1.5554b2p-5f;
  p = p * r + 0x1.555554p-3f;
  p = p * r + 0x1p-1f;
  return p * (r * r) + r;
}

/* e^x for -176 <= x <= 90, or a NaN; the bits of the sum that rounds to n end in those of n + 254, the sum of two exponents as floats
   hold them: the product by one is exact, so that that by the other rounds overflow and denormal results once. At -176 both are 0, and so
   is the result, without an underflow, for which processors take a hundred cycles: what is masked by -1e30 is not rare */
TC_INLINE float tc_exp_within_f32(float x) {
  float sum = x * 0x1.715476p+0f + 0x1.8001fcp+23f;
  float r = tc_exp_rest_f32(x, sum - 0x1.8001fcp+23f);
  float p = 0x1.6a235p-10f;
  p = p * r + 0x1.123a6cp-7f;
  p = p * r + 0x1.5558f4p-5f;
  p = p * r + 0x1.55549p-3f;
  p = p * r + 0x1.fffffcp-2f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  uint32_t both = tc_bits_f32(sum) << 23, half = both >> 1 & 0x7f800000u;
  return p * tc_from_bits_f32(half) * tc_from_bits_f32(both - half);
}

/* beyond the bounds the results are those at the bounds, 0 and infinity; comparisons in this order leave a NaN */
TC_INLINE float tc_exp_f32(float x) {
  TC_BOUND(low, -176.0f);
  TC_BOUND(high, 90.0f);
  float least = x < low ? low : x;
  return tc_exp_within_f32(least > high ? high : least);
}

/* 1 / (1 + e^-x), from e^-|x| so that the tail keeps its relative accuracy; of a choice gcc would evaluate e^ of both */
TC_INLINE float tc_sigmoid_f32(float x) {
  TC_BOUND(low, -176.0f);
  float a = -__builtin_fabsf(x), e = tc_exp_within_f32(a < low ? low : a);
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

TC_INLINE double tc_sigmoid_f64(double x) {
  double e = exp(-__builtin_fabs(x));
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}

/* -m / (2 + m) with m = e^(-2|x|) - 1, which is exact to the last bits near 0 */
TC_INLINE float tc_tanh_f32(float x) {
  TC_BOUND(high, 10.0f);
  float a = __builtin_fabsf(x), c = -2.0f * (a > high ? high : a);
  float sum = tc_exponent_of_exp_f32(c), scale = tc_power_of_two_f32(sum);
  float m = scale * tc_expm1_rest_f32(c, tc_exponent_f32(sum)) + (scale - 1.0f);
  return __builtin_copysignf(-m / (2.0f + m), x);
}

/* x P(x^2) up to 1, beyond 1 - e^-Q(x); at 4 the result has become 1 */
TC_INLINE float tc_erf_f32(float x) {
  TC_BOUND(high, 4.0f);
  float a = __builtin_fabsf(x), t = a * a;
  float p = 0x1.4ae4dap-14f;
  p = p * t - 0x1.a485fp-11f;
  p = p * t + 0x1.5419f6p-8f;
  p = p * t - 0x1.b7fbb4p-6f;
  p = p * t + 0x1.ce2d2p-4f;
  p = p * t - 0x1.81273ep-2f;
  p = p * t + 0x1.06eba8p-3f;
  float near = p * a + a;
  float c = a > high ? high : a;
  float q = -0x1.852cd4p-13f;
  q = q * c + 0x1.814c96p-9f;
  q = q * c - 0x1.65421p-6f;
  q = q * c + 0x1.a60a74p-4f;
  q = q * c + 0x1.46c586p-1f;
  q = q * c + 0x1.2085b2p+0f;
  q = q * c + 0x1.72e90ap-12f;
  float sum = tc_exponent_of_exp_f32(-q);
  float far = 1.0f - (1.0f + tc_expm1_rest_f32(-q, tc_exponent_f32(sum))) * tc_power_of_two_f32(sum);
  return __builtin_copysignf(a < 1.0f ? near : far, x);
}

/* x = m 2^e with m between the roots of 1/2 and 2; log m by f - f^2 / 2 + f^3 P(f) with f = m - 1, which is exact */
TC_INLINE float tc_log_f32(float x) {
  float y = x < 0x1p-126f ? x * 0x1p+23f : x; /* denormals */
  uint32_t above = tc_bits_f32(y) - 0x3f3504f3u;
  float n = (float)((int32_t)above >> 23) - (x < 0x1p-126f ? 23.0f : 0.0f);
  float f = tc_from_bits_f32((above & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  float p = -0x1.38b5a2p-4f;
  p = p * f + 0x1.055b6ep-3f;
  p = p * f - 0x1.0d853ep-3f;
  p = p * f + 0x1.22da1ep-3f;
  p = p * f - 0x1.547246p-3f;
  p = p * f + 0x1.99a008p-3f;
  p = p * f - 0x1.000226p-2f;
  p = p * f + 0x1.555554p-2f;
  float square = f * f;
  float value = (n * 0x1.0bfbe8p-15f + (square * (p * f) - 0.5f * square) + f) + n * 0x1.62ep-1f;
  return x > 0.0f && x < INFINITY ? value : x == 0.0f ? -INFINITY : x > 0.0f ? x : NAN;
}

/* x^n for a whole number n >= 0 of so many bits: what is selected are the products of its bits */
TC_INLINE double tc_integer_power_f64(double x, double n, int bits) {
  int32_t whole = (int32_t)n;
  double value = whole & 1 ? x : 1.0;
  if (bits > 1) x *= x, value = whole & 2 ? value * x : value;
  if (bits > 2) x *= x, value = whole & 4 ? value * x : value;
  if (bits > 3) x *= x, value = whole & 8 ? value * x : value;
  if (bits > 4) x *= x, value = whole & 16 ? value * x : value;
  if (bits > 5) x *= x, value = whole & 32 ? value * x : value;
  return value;
}

TC_INLINE float tc_integer_power_f32(float x, float n, int bits) {
  return (float)tc_integer_power_f64((double)x, (double)n, bits);
}

/* the same for n < 0; of a large x the power is scaled, which would overflow before its inverse has no bits left */
TC_INLINE double tc_inverse_power_f64(double x, double n, int bits) {
  double large = __builtin_fabs(x) > 0x1p+64 ? 0x1p-32 : 1.0;
  double scale = large < 1.0 ? tc_integer_power_f64(0x1p-32, -n, bits) : 1.0;
  return 1.0 / tc_integer_power_f64(x * large, -n, bits) * scale;
}

TC_INLINE float tc_inverse_power_f32(float x, float n, int bits) {
  return (float)tc_inverse_power_f64((double)x, (double)n, bits);
}

TC_INLINE double tc_exp10_f64(double x) {
  return pow(10.0, x);
}

TC_INLINE float tc_exp10_f32(float x) {
  return (float)exp2((double)x * 0x1.a934f0979a371p+1);
}

/* the argument taken modulo 2, exactly, then by quadrant */
TC_INLINE double tc_sinpi_f64(double x) {
  double turn = x - 2.0 * rint(0.5 * x), quarter = rint(2.0 * turn);
  double angle = (turn - 0.5 * quarter) * 0x1.921fb54442d18p+1;
  double value = quarter == 0.0 ? sin(angle) : quarter == 1.0 ? cos(angle) : quarter == -1.0 ? -cos(angle) : -sin(angle);
  return value == 0.0 ? __builtin_copysign(0.0, x) : value;
}

TC_INLINE double tc_cospi_f64(double x) {
  double turn = x - 2.0 * rint(0.5 * x), quarter = rint(2.0 * turn);
  double angle = (turn - 0.5 * quarter) * 0x1.921fb54442d18p+1;
  double value = quarter == 0.0 ? cos(angle) : quarter == 1.0 ? -sin(angle) : quarter == -1.0 ? sin(angle) : -cos(angle);
  return value + 0.0;
}

TC_INLINE double tc_rcbrt_f64(double x) {
  return 1.0 / cbrt(x);
}

/* hypot, of numbers scaled so that the norm neither overflows nor loses bits */
TC_INLINE double tc_rhypot_f64(double x, double y) {
  double scale = __builtin_fabs(x) > 1.0 || __builtin_fabs(y) > 1.0 ? 0.25 : 1.0;
  return scale / hypot(x * scale, y * scale);
}

/* an infinity among the coordinates outweighs a NaN, as in hypot */
TC_INLINE double tc_norm3d_f64(double x, double y, double z) {
  return hypot(hypot(x, y), z);
}

TC_INLINE double tc_norm4d_f64(double x, double y, double z, double w) {
  return hypot(hypot(x, y), hypot(z, w));
}

TC_INLINE double tc_rnorm3d_f64(double x, double y, double z) {
  double largest = fmax(fmax(__builtin_fabs(x), __builtin_fabs(y)), __builtin_fabs(z)), scale = largest > 1.0 ? 0.25 : 1.0;
  return scale / tc_norm3d_f64(x * scale, y * scale, z * scale);
}

TC_INLINE double tc_rnorm4d_f64(double x, double y, double z, double w) {
  double largest = fmax(fmax(__builtin_fabs(x), __builtin_fabs(y)), fmax(__builtin_fabs(z), __builtin_fabs(w)));
  double scale = largest > 1.0 ? 0.25 : 1.0;
  return scale / tc_norm4d_f64(x * scale, y * scale, z * scale, w * scale);
}

/* e^(x^2) times e^0 corrected for the rounding of the square */
static inline double tc_exp_square_f64(double x) {
  double square = x * x, lost = fma(x, x, -square);
  double value = exp(square);
  return value < INFINITY ? value + value * lost : value;
}

/* e^(x^2) erfc(x): the product below 10, above the asymptotic series (DLMF 7.12.1) */
static inline double tc_erfcx_f64(double x) {
  if (!(x > 10.0)) return x < -27.0 ? INFINITY : tc_exp_square_f64(x) * erfc(x);
  if (x > 1e8) return 0x1.20dd750429b6dp-1 / x;
  double term = 0.5 / x / x, sum = 1.0;
  for (int k = 13; k > 0; k--) sum = 1.0 - (2 * k - 1) * term * sum;
  return sum * 0x1.20dd750429b6dp-1 / x;
}

/* the inverse of erf for |x| <= 1/2: its series, then Halley's steps */
static inline double tc_erfinv_middle_f64(double x) {
  double t = 0x1.921fb54442d18p-1 * x * x; /* pi x^2 / 4 */
  double y = x * 0x1.c5bf891b4ef6ap-1 * (1.0 + t * (1.0 / 3.0 + t * (7.0 / 30.0 + t * (127.0 / 630.0))));
  for (int k = 0; k < 2; k++) {
    double miss = erf(y) - x, slope = 0x1.20dd750429b6dp+0 * exp(-y * y);
    y -= miss / (slope + y * miss);
  }
  return y;
}

/* the inverse of erfc for 0 < x <= 1/2: Newton's steps on its logarithm, which is nearly a parabola, then one on itself */
static inline double tc_erfcinv_tail_f64(double x) {
  double goal = log(x), y = sqrt(-goal);
  for (int k = 0; k < 6; k++) {
    double scaled = tc_erfcx_f64(y);
    y += (log(scaled) - (y * y + goal)) * 0x1.c5bf891b4ef6ap-1 * scaled;
  }
  return x < 0x1p-900 ? y : y + (erfc(y) - x) * 0x1.c5bf891b4ef6ap-1 * exp(y * y);
}

TC_INLINE double tc_erfcinv_f64(double x) {
  if (!(x > 0.0 && x < 2.0)) return x == 0.0 ? INFINITY : x == 2.0 ? -INFINITY : NAN;
  return x <= 0.5 ? tc_erfcinv_tail_f64(x) : x < 1.5 ? tc_erfinv_middle_f64(1.0 - x) : -tc_erfcinv_tail_f64(2.0 - x);
}

TC_INLINE double tc_erfinv_f64(double x) {
  double a = __builtin_fabs(x);
  if (a <= 0.5) return tc_erfinv_middle_f64(x);
  return __builtin_copysign(a < 1.0 ? tc_erfcinv_tail_f64(1.0 - a) : a == 1.0 ? INFINITY : NAN, x);
}

/* the normal distribution, erfc(y) / 2 with y = -x / sqrt 2; in the lower tail that is corrected for the rounding of y, by the logarithmic
   derivative of erfc, which is nearly -y - sqrt(y^2 + 2) (DLMF 7.8.2); floats divide x and 1 / sqrt 2 into parts with exact products */
TC_INLINE double tc_normcdf_f64(double x) {
  double y = x * -0x1.6a09e667f3bcdp-1, high = (double)(float)x;
  double lost = ((high * -0x1.6a09e6p-1 - y) - high * 0x1.9fcef32422cbfp-27) - (x - high) * 0x1.6a09e667f3bcdp-1;
  double value = erfc(y), slope = y + sqrt(y * y + 2.0);
  return x < -39.0 ? 0.0 : 0.5 * (y > 0.5 ? value - value * (lost * slope) : value);
}

TC_INLINE float tc_normcdf_f32(float x) {
  double exact = (double)x * -0x1.6a09e667f3bcdp-1;
  float y = (float)exact, lost = (float)(exact - (double)y);
  float value = erfcf(y), slope = y + sqrtf(y * y + 2.0f);
  return x < -15.0f ? 0.0f : 0.5f * (y > 0.5f ? value - value * (lost * slope) : value);
}

TC_INLINE double tc_normcdfinv_f64(double p) {
  return -0x1.6a09e667f3bcdp+0 * tc_erfcinv_f64(2.0 * p);
}

/* modified Bessel functions: all terms of the series (DLMF 10.25.2) are positive; from 25 on the expansion for large x (10.40.1) */
static inline double tc_bessel_i_f64(double x, int order) {
  double a = __builtin_fabs(x), sum = 1.0, term = 1.0;
  if (a < 25.0) {
    for (int k = 1; k < 80 && term > sum * 0x1p-56; k++) {
      term *= 0.25 * a * a / ((double)k * (k + order));
      sum += term;
    }
    return order ? 0.5 * x * sum : sum;
  }
  for (int k = 1; k < 30; k++) {
    term *= ((2 * k - 1) * (2 * k - 1) - 4 * order * order) / (8.0 * k * a);
    sum += term;
  }
  double root = exp(0.5 * a); /* applied twice: e^x overflows before the function does */
  double value = a > 1e3 ? a * INFINITY : sum / sqrt(0x1.921fb54442d18p+2 * a) * root * root;
  return order && x < 0.0 ? -value : value;
}

TC_INLINE double tc_cyl_bessel_i0_f64(double x) {
  return tc_bessel_i_f64(x, 0);
}

TC_INLINE double tc_cyl_bessel_i1_f64(double x) {
  return tc_bessel_i_f64(x, 1);
}

/* Bessel functions of order 0 and 1 from their expansion for large x (DLMF 10.17.3), P and Q of which are even and odd terms */
static inline double tc_bessel_far_f64(double x, int order, int second) {
  double p = 1.0, q = 0.0, term = 1.0;
  for (int k = 1; k < 30; k++) {
    term *= (4 * order - (2 * k - 1) * (2 * k - 1)) / (8.0 * k * x);
    double part = k & 2 ? -term : term;
    if (k & 1) q += part;
    else p += part;
  }
  double s = sin(x), c = cos(x), cosine = order ? s - c : s + c, sine = order ? -s - c : s - c;
  double value = second ? sine * p + cosine * q : cosine * p - sine * q;
  return x < INFINITY ? value * sqrt(0x1.45f306dc9c883p-2 / x) : 0.0;
}

/* those of the first kind by recurrence downwards (DLMF 3.6), whose even orders sum to 1; those of the second by Neumann's
   expansions in them (Abramowitz and Stegun 9.1.88) */
static inline double tc_bessel_near_f64(double x, int order, int second) {
  double here = 1e-150, above = 0.0, sum = 0.0, series = 0.0;
  for (int k = 2 * (int)(0.75 * x) + 24; k > 0; k--) {
    int m = k / 2;
    double sign = m & 1 ? -1.0 : 1.0, weight = order ? k / (m * (m + 1.0)) : 2.0 / m;
    if (k & 1) series += order && m ? sign * weight * here : 0.0;
    else sum += 2.0 * here, series += order ? 0.0 : sign * weight * here;
    double below = 2 * k / x * here - above;
    above = here;
    here = below;
  }
  double scale = 1.0 / (sum + here), j0 = here * scale, j1 = above * scale;
  series *= scale;
  if (x < 1e-4) j0 = 1.0 - 0.25 * x * x, j1 = 0.5 * x * (1.0 - 0.125 * x * x), series = order ? 0.0 : -0.25 * x * x;
  if (!second) return order ? j1 : j0;
  double logarithm = log(x) - 0x1.dadb014541eb2p-4; /* log(x / 2) + Euler's constant */
  double value = order ? (logarithm - 1.0) * j1 - series : logarithm * j0 - series, pole = order ? 0x1.45f306dc9c883p-1 * j0 / x : 0.0;
  return x > 0.0 ? value * 0x1.45f306dc9c883p-1 - pole : -INFINITY;
}

TC_INLINE double tc_bessel_jy_f64(double x, int order, int second) {
  return !(x >= 0.0) ? NAN : x < 25.0 ? tc_bessel_near_f64(x, order, second) : tc_bessel_far_f64(x, order, second);
}

TC_INLINE double tc_j0_f64(double x) {
  return tc_bessel_jy_f64(__builtin_fabs(x), 0, 0);
}

TC_INLINE double tc_j1_f64(double x) {
  return __builtin_copysign(1.0, x) * tc_bessel_jy_f64(__builtin_fabs(x), 1, 0);
}

TC_INLINE double tc_y0_f64(double x) {
  return tc_bessel_jy_f64(x, 0, 1);
}

TC_INLINE double tc_y1_f64(double x) {
  return tc_bessel_jy_f64(x, 1, 1);
}

/* the logarithmic derivative of the gamma function: from 10 on the expansion 5.11.2, below by the recurrence 5.5.2, left of 0 by the
   reflection 5.5.4 */
static inline double tc_digamma_f64(double x) {
  double below = 0.0;
  if (!(x > 0.0)) {
    double rest = x - floor(x);
    if (x == 0.0) return __builtin_copysign(1.0, x) > 0.0 ? -INFINITY : INFINITY;
    if (rest == 0.0 || rest != rest) return NAN;
    if (rest > 0.5) rest = x - floor(x + 0.5); /* exact next to a pole */
    below = 0x1.921fb54442d18p+1 / tan(0x1.921fb54442d18p+1 * rest);
    x = 1.0 - x;
  }
  while (x < 10.0) {
    below += 1.0 / x;
    x += 1.0;
  }
  double t = 1.0 / (x * x), sum = t * (1.0 / 12.0 - t * (1.0 / 120.0 - t * (1.0 / 252.0 - t * (1.0 / 240.0 - t * (1.0 / 132.0
    - t * (691.0 / 32760.0 - t * (1.0 / 12.0 - t * (3617.0 / 8160.0))))))));
  return log(x) - 0.5 / x - (x < INFINITY ? sum : 0.0) - below;
}

/* the sum of (a + k)^-s over k from 0 on, for a > 0 and s > 1, by Euler and Maclaurin (25.11.28) */
static inline double tc_zeta_f64(double s, double a) {
  double sum = 0.0, end = a;
  for (; end < 12.0; end += 1.0) sum += pow(end, -s);
  double last = pow(end, -s), t = 1.0 / (end * end), term = s / end * last;
  sum += last * (end / (s - 1.0) + 0.5);
  sum += term / 12.0;
  term *= (s + 1.0) * (s + 2.0) * t;
  sum -= term / 720.0;
  term *= (s + 3.0) * (s + 4.0) * t;
  sum += term / 30240.0;
  term *= (s + 5.0) * (s + 6.0) * t;
  sum -= term / 1209600.0;
  term *= (s + 7.0) * (s + 8.0) * t;
  sum += term / 47900160.0;
  term *= (s + 9.0) * (s + 10.0) * t;
  sum -= term * (691.0 / 1307674368000.0);
  term *= (s + 11.0) * (s + 12.0) * t;
  sum += term / 74724249600.0;
  return sum;
}

/* the derivative of order n of digamma, a zeta function (5.15.1); left of 0 the terms on both sides of x, without those beyond 0 */
static inline double tc_polygamma_f64(double n, double x) {
  if (!(n >= 0.0 && n <= 170.0) || n != floor(n) || x != x) return NAN; /* the factorial of 171 is no double */
  if (n == 0.0) return tc_digamma_f64(x);
  double s = n + 1.0, odd = s - 2.0 * floor(0.5 * s) == 1.0 ? -1.0 : 1.0, sum = 0.0;
  if (x <= 0.0 && x == floor(x)) {
    sum = x == -INFINITY ? NAN : INFINITY;
  } else if (x > 0.0) {
    sum = x < INFINITY ? tc_zeta_f64(s, x) : 0.0;
  } else {
    double near = x - floor(x + 0.5); /* exact next to a pole */
    double above = near > 0.0 ? near : 1.0 + near, under = near > 0.0 ? 1.0 - near : -near;
    sum = tc_zeta_f64(s, above) + odd * (tc_zeta_f64(s, under) - tc_zeta_f64(s, 1.0 - x));
  }
  return odd * tgamma(s) * sum;
}
