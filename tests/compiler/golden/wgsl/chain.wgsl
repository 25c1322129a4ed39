@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read> b1: array<f32>;
@group(0) @binding(2) var<storage, read> b2: array<f32>;
@group(0) @binding(3) var<storage, read_write> b3: array<f32>;
var<private> zero: u32;
fn exact(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) ^ zero); }
fn truth(x: bool) -> bool { return (u32(x) ^ zero) != 0u; }
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }
fn min_f32(x: f32, y: f32) -> f32 {
  if (is_nan(x)) { return x; }
  if (is_nan(y)) { return y; }
  if (x == y) { return bitcast<f32>(bitcast<u32>(x) | bitcast<u32>(y)); }
  return select(y, x, x < y);
}
@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>,
        @builtin(local_invocation_id) local: vec3<u32>) {
  zero = group.z;  // a grid has one layer
  let i_block = i32(group.x + group.y * 65535u);
  if (i_block < 256i) {
    let i_thread = i32(local.x);
    if (i_thread < 256i) {
      let v1 = i_block * 256i;
      let v2 = v1 + i_thread;
      let v3 = b0[v2];
      let v4 = b1[v2];
      let v5 = exact(v3 * v4);
      let v6 = b2[v2];
      let v7 = exact(v5 + v6);
      let v8 = abs(v7);
      let v9 = truth(v8 < 5.500000119e-01f);
      let v10 = exact(v7 * v7);
      let v11 = exact(v7 * v10);
      let v12 = exact(fma(-6.282533985e-03f, v10, 2.107780427e-02f));
      let v13 = exact(fma(v12, v10, -5.385386944e-02f));
      let v14 = exact(fma(v13, v10, 1.333260238e-01f));
      let v15 = exact(fma(v14, v10, -3.333331943e-01f));
      let v16 = exact(fma(v11, v15, v7));
      let v17 = min_f32(f32(v8), f32(4.000000000e+01f));
      let v18 = exact(fma(v17, 2.885390043e+00f, 1.258303900e+07f));
      let v19 = bitcast<i32>(v18);
      let v20 = v19 << 23u;
      let v21 = bitcast<f32>(v20);
      let v22 = exact(v18 - 1.258303900e+07f);
      let v23 = exact(fma(v22, -3.465728760e-01f, v17));
      let v24 = exact(fma(v22, -7.143033827e-07f, v23));
      let v25 = exact(fma(8.925765008e-02f, v24, 2.677303553e-01f));
      let v26 = exact(fma(v25, v24, 6.666604877e-01f));
      let v27 = exact(fma(v26, v24, 1.333323479e+00f));
      let v28 = exact(fma(v27, v24, 2.000000000e+00f));
      let v29 = exact(fma(v28, v24, 2.000000000e+00f));
      let v30 = exact(fma(v29, v24, 1.000000000e+00f));
      let v31 = exact(fma(v21, v30, 1.000000000e+00f));
      let v32 = exact(v31 - 2.000000000e+00f);
      let v33 = exact(v32 / v31);
      let v34 = select(v33, v16, v9);
      let v35 = bitcast<i32>(v34);
      let v36 = v35 & 2147483647i;
      let v37 = bitcast<i32>(v7);
      let v38 = v37 & (-2147483647 - 1);
      let v39 = v36 | v38;
      let v40 = bitcast<f32>(v39);
      b3[v2] = v40;
    }
  }
}
