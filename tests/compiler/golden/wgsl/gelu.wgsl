@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
var<private> zero: u32;
fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn min_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) | bitcast<u32>(y)); }
  return select(y, x, x < y);
}
fn max_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) & bitcast<u32>(y)); }
  return select(y, x, x > y);
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
  zero = group.z;  // a grid has one layer
  let i_block = i32(group.x + group.y * 65535u);
  if (i_block < 128i) {
    let i_thread = i32(local.x);
    if (i_thread < 256i) {
      let v1 = i_block * 256i;
      let v2 = v1 + i_thread;
      let v3 = b0[v2];
      let v4 = exact(v3 * v3);
      let v5 = min_f32(f32(v4), f32(2.925714302e+01f));
      let v6 = exact(fma(v5, 6.835937500e-02f, -1.000000000e+00f));
      let v7 = exact(v6 * v6);
      let v8 = exact(fma(v6, -1.055547036e-03f, 8.882483235e-04f));
      let v9 = exact(fma(4.042779910e-04f, v7, v8));
      let v10 = exact(fma(v6, -1.192681026e-03f, 3.708522301e-03f));
      let v11 = exact(fma(v9, v7, v10));
      let v12 = exact(fma(v6, -6.797426846e-03f, 9.725087322e-03f));
      let v13 = exact(fma(v11, v7, v12));
      let v14 = exact(fma(v6, -1.403011475e-02f, 1.970607974e-02f));
      let v15 = exact(fma(v13, v7, v14));
      let v16 = exact(fma(v6, -2.578261122e-02f, 3.211628273e-02f));
      let v17 = exact(fma(v15, v7, v16));
      let v18 = exact(fma(v6, -3.917052597e-02f, 4.843091220e-02f));
      let v19 = exact(fma(v17, v7, v18));
      let v20 = exact(fma(v6, -6.522277743e-02f, 1.307110190e-01f));
      let v21 = exact(fma(v19, v7, v20));
      let v22 = exact(fma(v3, v21, 5.000000000e-01f));
      let v23 = max_f32(f32(v22), f32(0.000000000e+00f));
      let v24 = min_f32(f32(v23), f32(1.000000000e+00f));
      let v25 = exact(v3 * v24);
      b1[v2] = v25;
    }
  }
}
