-- Walk a model's jobs from the newest, in the order of (created, id), and return those in some states. KEYS: none.
-- ARGV: 1 model, 2 creation time and 3 id of the job to begin after ('' and '' for the newest), 4 the oldest creation time
--       that counts, 5 letters of states ('' for all; a leased job that has not begun is queued), 6 how many ids to return at most, 7 how many to look at at most,
--       8 the API key whose jobs count ('' for all; -: jobs of no key), then texts in threes: the metadata, which is JSON, must
--       have one text of each three.
-- Returns {whether more may follow (1 or 0), created and id of the last that was looked at, then per job: created, id}.
-- An id whose record has expired, or belongs to another model, is removed from the index.
local model, before, before_id, since, states = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local most, most_looked, owner = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] ~= '' and ARGV[8]
local index = keys.job_index .. model
local answer, gone, looked, last, last_id = {1, before, before_id}, {}, 0, before, before_id

-- Nothing changes while this runs, so that ranks can be used; members of equal score that were seen are skipped.
local rank = before == '' and 0 or call('ZCOUNT', index, '(' .. before, '+inf')
local total = call('ZCARD', index)

-- By bytes, as Redis orders members of equal score; Lua's own comparison follows the server's locale.
local function below(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function seen(created, id) return before ~= '' and created == before and not below(id, before_id) end

local function has_metadata(id)
  local metadata = ARGV[9] and (read(id, 'md')[1] or '')
  local function has(i) return string.find(metadata, ARGV[i], 1, true) end
  for i = 9, #ARGV, 3 do
    if not (has(i) or has(i + 1) or has(i + 2)) then return false end
  end
  return true
end

local function look(created, id)
  local state, of, key, started = unpack(read(id, 's', 'm', 'ky', 'st'))
  if state == 'r' and not started then state = 'q' end
  looked = looked + 1
  last, last_id = created, id
  if not state or of ~= model then
    gone[#gone + 1] = id
  elseif (states == '' or string.find(states, state, 1, true)) and (not owner or (key or '-') == owner)
    and has_metadata(id) then
    local n = #answer
    answer[n + 1], answer[n + 2] = created, id
  end
end

-- The head of the reply has three values, each job two.
local function full() return #answer >= 3 + 2 * most or looked >= most_looked end

local ended = false
while not ended and not full() do
  local part = call('ZREVRANGE', index, rank, rank + 99, 'WITHSCORES')
  ended = #part == 0
  for i = 1, #part, 2 do
    local id, created = part[i], whole(tonumber(part[i + 1]))
    if tonumber(created) < since then ended = true end
    if ended or full() then break end
    if not seen(created, id) then look(created, id) end
    rank = rank + 1
  end
end
if ended or rank >= total then answer[1] = 0 end
answer[2], answer[3] = last, last_id
in_chunks('ZREM', index, gone)
return answer
