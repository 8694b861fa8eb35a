-- Read how jobs have ended. KEYS: none. ARGV: 1 the API key whose jobs are known ('': all; -: jobs of no key), then ids.
-- Returns per id: 0 if it is unknown; its state if it has not ended (q for a leased job that has not begun); {state,
-- attempts, timings, created, ended, device wait, result} if the record has the result; else {state, attempts, timings,
-- created, ended, device wait, result type, error, stored result, Celery result or ''}.
local OWNER = 8

local owner, answer = ARGV[1], {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local row
  if owner == '' then
    row = try('HMGET', keys.job .. id, 's', 'a', 'tm', 'c', 'en', 'dw', 'r')
  else
    row = try('HMGET', keys.job .. id, 's', 'a', 'tm', 'c', 'en', 'dw', 'r', 'ky')
  end
  local state = row[1]
  if not state or not (owner == '' or owner == (row[OWNER] or '-')) then
    answer[i - 1] = 0
  elseif not FINAL[state] then
    answer[i - 1] = state == 'r' and call('HEXISTS', keys.job .. id, 'st') == 0 and 'q' or state
  else
    row[OWNER] = nil
    if not row[7] then
      local kind, err, stored = unpack(read(id, 'rt', 'e', 'rr'))
      local meta = state == 's' and not stored and try('GET', keys.meta .. id)
      row[7], row[8], row[9] = kind or '', err or '', stored or ''
      row[10] = type(meta) == 'string' and meta or ''
    end
    for k = 2, 6 do row[k] = row[k] or '' end
    answer[i - 1] = row
  end
end
return answer
