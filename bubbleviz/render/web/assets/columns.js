// Unpacks the contents of the page: deflated JSON, and columns stored byte by byte (see page.py).

async function inflate(id) {
  const text = document.getElementById(id).textContent.trim();
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

async function loadPage() {
  const [text, buffer] = await Promise.all([inflate("document"), inflate("columns")]);
  const whole = JSON.parse(new TextDecoder().decode(text));
  const tables = decodeTables(buffer);
  return { ...whole, tables, meansTable: tables.means };
}
