-- Append pieces to the logs of leased jobs, each piece once, and publish which logs have grown. KEYS: none.
-- ARGV: 1 model, then per row: id, token, run, number of its first piece in this attempt (from 1), how many pieces, the
-- entry (a JSON array of pieces, or '' for a restart mark), and what belongs to them: a JSON array of tokens, an object
-- with the status and the headers of a response, or ''. A row of 0 pieces at the beginning of an attempt means that it
-- goes on where the last one ended. Returns how many rows were of lost leases.
-- After a crash of Redis another worker can get the token of a lost claim. So a run writes nothing into that of another,
-- unless a restart mark begins it.
-- A run is a number that no other run of a handler has. The id of an entry is the index of its last piece, and the run.
-- The field pc is "token base last run": indexes of this attempt follow `base`, and the log ends with `last`.
local ours, types, refused = {}, {}, 0
for i = 2, #ARGV, 7 do
  local id = ARGV[i]
  local token, state, log = unpack(read(id, 't', 's', 'pc'))
  local key = keys.pieces .. id
  if not types[id] then types[id] = call('TYPE', key).ok end
  if token == ARGV[i + 1] and state == 'r' and (types[id] == 'stream' or types[id] == 'none') then
    ours[#ours + 1] = {i, id, key}
  else
    refused = refused + 1
  end
end
if #ours == 0 then return refused end
begin_with_removal(keys.PAYLOADS)
local changed, grown = {}, {}

local function append(i, id, key, token, base, last)
  local run, first, count = ARGV[i + 2], tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
  local entry, more = ARGV[i + 5], ARGV[i + 6]
  if token ~= ARGV[i + 1] then
    base = last
    -- Readers drop what the last attempt wrote. The mark takes an index, so that indexes never go back.
    if base > 0 and count > 0 then
      base = base + 1
      call('XADD', key, whole(base) .. '-' .. run, 'p', '')
    end
    last = base
  end
  local to = base + first + count - 1
  if to > last then
    local name = whole(to) .. '-' .. run
    if more == '' then
      call('XADD', key, 'MAXLEN', '~', keys.PIECES_MAX, name, 'p', entry)
    else
      local field = string.sub(more, 1, 1) == '{' and 'h' or 't'
      call('XADD', key, 'MAXLEN', '~', keys.PIECES_MAX, name, 'p', entry, field, more)
    end
    last = to
  end
  call('HSET', keys.job .. id, 'pc', table.concat({ARGV[i + 1], whole(base), whole(last), run}, ' '))
  if token ~= ARGV[i + 1] then call('EXPIRE', key, keys.PIECES_TTL_S) end
  if not changed[id] then
    changed[id] = true
    grown[#grown + 1] = id
  end
end

for _, row in ipairs(ours) do
  local i, id = row[1], row[2]
  local token, base, last, run = string.match(call('HGET', keys.job .. id, 'pc') or '', '^(%S+) (%d+) (%d+) (%d+)$')
  local mark = ARGV[i + 5] == '' and ARGV[i + 4] ~= '0'
  if token == ARGV[i + 1] and run ~= ARGV[i + 2] and not mark then
    refused = refused + 1
  else
    append(i, id, row[3], token, tonumber(base or '0'), tonumber(last or '0'))
  end
end
if #grown > 0 then call('PUBLISH', keys.piece_channel .. ARGV[1], table.concat(grown, ' ')) end
return refused
