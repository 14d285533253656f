// Requests to the studio. The token of the address goes with each of them.
export const token = new URLSearchParams(location.search).get("token") ?? "";

async function checked(response) {
  if (response.ok) return response;
  const text = await response.text();
  let reason = text;
  try {
    reason = JSON.parse(text).error ?? text;
  } catch {
    // The reason is plain text.
  }
  throw new Error(reason);
}

const headers = { "x-studio-token": token };

export async function getJson(path) {
  return (await checked(await fetch(path, { headers }))).json();
}

export async function getPicture(path) {
  const blob = await (await checked(await fetch(path, { headers }))).blob();
  return createImageBitmap(blob);
}

export async function post(path, body = {}) {
  const response = await fetch(path, {
    method: "POST",
    headers: { ...headers, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  return (await checked(response)).json();
}

export function listen(onState, onLost) {
  const source = new EventSource(`/api/events?token=${encodeURIComponent(token)}`);
  source.onmessage = (message) => onState(JSON.parse(message.data));
  source.onerror = onLost;
}
